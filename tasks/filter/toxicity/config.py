"""Which toxicity classifier is used, and how it is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tasks.filter.fasttext_model.config import TrainingConfig
from tasks.stage.config import StageConfig


class PackageModelConfig(StageConfig):
    """The model in the package `alt-profanity-check`: insults but not implicit hate, and English only."""

    kind: Literal["package"] = "package"


class LabelledFile(StageConfig):
    """Labelled texts on disk: `.csv` with a header, or `.jsonl`."""

    path: str = Field(description="path of the file; its digest is part of the key")
    text_column: str = Field(description="column with the text")
    label_column: str = Field(description="column with the label")
    toxic: list[str] = Field(min_length=1, description="labels that mean toxic, as spelled in the file")


class TrainedModelConfig(StageConfig):
    """A fastText classifier, trained on labelled texts and on the pipeline's own documents."""

    kind: Literal["trained"] = "trained"
    files: list[LabelledFile] = Field(min_length=1, description="labelled texts")
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
        description="characters at the beginning of each document, of which two paragraphs, chosen by hash, are "
        "examples",
    )
    paragraph_bytes: int = Field(2000, ge=100, description="longer paragraphs are cut; as in `measure.paragraph_bytes`")
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="fastText's parameters")


ToxicityModelConfig = Annotated[PackageModelConfig | TrainedModelConfig, Field(discriminator="kind")]


class ToxicityConfig(StageConfig):
    """Toxicity as signals."""

    model: ToxicityModelConfig = Field(default_factory=PackageModelConfig, description="the classifier")
    paragraph_bytes: int = Field(
        2000, ge=100, description="longer paragraphs, in UTF-8 bytes, are cut at the next word"
    )
