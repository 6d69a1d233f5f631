"""The settings of the toxicity classifier, and of its training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tasks.filter.classifier.config import ClassifierConfig, of_probability
from tasks.filter.fasttext_model.config import LabelledFile, TrainingConfig
from tasks.stage.config import StageConfig

BaseRate = Annotated[
    float,
    Field(
        gt=0,
        lt=1,
        description="share of text that you expect to be toxic. Scores are probabilities at this share, not at that of "
        "the labelled texts, of which every tenth to second is toxic",
    ),
]


class PackageModelConfig(StageConfig):
    """Two models from packages: a linear one settles most pieces, and an LSTM trained on comments of Wikipedia's
    editors settles the rest. They find insults and slurs, seldom implicit hate, and only in English."""

    kind: Literal["package"] = "package"
    base_rate: BaseRate = 0.01


class TrainedModelConfig(StageConfig):
    """A fastText classifier, trained on labelled texts and on the pipeline's own documents."""

    kind: Literal["trained"] = "trained"
    files: list[LabelledFile] = Field(min_length=1, description="labelled texts, where positive means toxic")
    clean_sources: list[str] = Field(
        [],
        description="sources of documents to use as non-toxic examples. Without them, text that merely differs from "
        "the labelled texts may be flagged",
    )
    clean_sample: int = Field(
        10_000, ge=1, description="maximum documents of `clean_sources`, chosen by the hash of their ID"
    )
    characters: int = Field(
        10_000,
        ge=100,
        description="characters at the beginning of each document from which two pieces, chosen by hash, are examples",
    )
    piece_bytes: int = Field(300, ge=50, description="length of these pieces, as in `measure.piece_bytes`")
    base_rate: BaseRate = 0.01
    target_precision: float = Field(
        0.9,
        gt=0,
        lt=1,
        description="precision on held-out documents, at `base_rate`, for which the artifact reports the lowest "
        "`max_score`",
    )
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="fastText's parameters")


ToxicityModelConfig = Annotated[
    PackageModelConfig | TrainedModelConfig | ClassifierConfig,
    Field(discriminator="kind"),
    AfterValidator(of_probability),
]


class ToxicityConfig(StageConfig):
    """Toxicity as signals."""

    model: ToxicityModelConfig = Field(default_factory=PackageModelConfig, description="the classifier")
    piece_bytes: int = Field(
        300, ge=50, description="maximum UTF-8 bytes of a piece, which consists of whole sentences, wherever lines end"
    )
