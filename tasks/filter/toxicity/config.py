"""Which toxicity classifier is used, and how it is trained."""

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
        description="share of text that you expect to be toxic; scores are probabilities at this share, not at that of "
        "the labelled texts, where every tenth to second is",
    ),
]


class PackageModelConfig(StageConfig):
    """Two models that come with packages: a linear one settles most pieces, and an LSTM trained on comments of
    Wikipedia's editors the rest. Insults and slurs, seldom implicit hate; English only."""

    kind: Literal["package"] = "package"
    base_rate: BaseRate = 0.01


class TrainedModelConfig(StageConfig):
    """A fastText classifier, trained on labelled texts and on the pipeline's own documents."""

    kind: Literal["trained"] = "trained"
    files: list[LabelledFile] = Field(min_length=1, description="labelled texts; positive is what is toxic")
    clean_sources: list[str] = Field(
        [],
        description="sources of documents used as non-toxic examples; without any, text that merely differs from the "
        "labelled texts may be flagged",
    )
    clean_sample: int = Field(
        10_000, ge=1, description="maximum documents of those sources, chosen by the hash of their ID"
    )
    characters: int = Field(
        10_000,
        ge=100,
        description="characters at the beginning of each document, of which two pieces, chosen by hash, are examples",
    )
    piece_bytes: int = Field(300, ge=50, description="length of these pieces; as in `measure.piece_bytes`")
    base_rate: BaseRate = 0.01
    target_precision: float = Field(
        0.9,
        gt=0,
        lt=1,
        description="the artifact names the lowest `max_score` that reaches this precision on held-out documents, at "
        "that share of toxic ones",
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
        300,
        ge=50,
        description="a piece is as many whole sentences as fit into this many UTF-8 bytes, wherever lines end",
    )
