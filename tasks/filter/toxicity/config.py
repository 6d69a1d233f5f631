"""Which toxicity classifier, and what it is trained on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tasks.filter.fasttext_model.config import TrainingConfig
from tasks.stage.config import StageConfig


class PackageModelConfig(StageConfig):
    """The model that `alt-profanity-check` carries: it knows insults, not implicit hate, and English only."""

    kind: Literal["package"] = "package"


class LabelledFile(StageConfig):
    """Labelled texts on disk: `.csv` with a head line, or `.jsonl`."""

    path: str = Field(description="the file; what it holds enters the key")
    text_column: str = Field(description="where the text stands")
    label_column: str = Field(description="where the label stands")
    toxic: list[str] = Field(min_length=1, description="labels that mean toxic, as they are written in the file")


class TrainedModelConfig(StageConfig):
    """A fastText classifier, trained on labelled texts and on the pipeline's own documents."""

    kind: Literal["trained"] = "trained"
    files: list[LabelledFile] = Field(min_length=1, description="labelled texts")
    clean_sources: list[str] = Field(
        [],
        description="sources of documents that count as not toxic: without such, what merely reads otherwise than the"
        " labelled texts may be flagged",
    )
    clean_sample: int = Field(10_000, ge=1, description="documents of those at the most, chosen by the hash of the id")
    characters: int = Field(
        10_000, ge=100, description="of each document's beginning; two paragraphs of it, chosen by hash, are trained on"
    )
    paragraph_bytes: int = Field(2000, ge=100, description="as where it is measured")
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="fastText's parameters")


ToxicityModelConfig = Annotated[PackageModelConfig | TrainedModelConfig, Field(discriminator="kind")]


class ToxicityConfig(StageConfig):
    """Toxicity as signals."""

    model: ToxicityModelConfig = Field(default_factory=PackageModelConfig, description="the classifier")
    paragraph_bytes: int = Field(
        2000, ge=100, description="a paragraph with more UTF-8 bytes is cut where the next word begins"
    )
