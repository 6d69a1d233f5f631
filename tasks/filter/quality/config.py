"""How the quality classifier is trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from tasks.filter.classifier.config import ClassifierConfig, of_probability
from tasks.filter.fasttext_model.config import LabelledFile, TrainingConfig
from tasks.stage.config import StageConfig


class QualityModelConfig(StageConfig):
    """Examples of good and ordinary text: sources of the pipeline's own documents, labelled texts, or both."""

    kind: Literal["trained"] = "trained"
    positive: list[str] = Field([], description="sources of good text, which the corpus should resemble")
    negative: list[str] = Field(
        [],
        description="sources of ordinary text. If empty, all sources that are not positive, or none if only labelled "
        "texts are given",
    )
    files: list[LabelledFile] = Field([], description="labelled texts, where positive means good")
    sample: int = Field(20_000, ge=50, description="maximum documents per class, chosen by the hash of their ID")
    characters: int = Field(
        2000,
        ge=100,
        description="characters at the beginning of each document to train on. Scoring uses the whole text",
    )
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="fastText's parameters")

    @model_validator(mode="after")
    def _learns_from_something(self) -> Self:
        if not self.positive and not self.files:
            raise ValueError("nothing to learn from: list sources of good text in positive, or labelled texts in files")
        return self


def _kind(model: Any) -> str:
    kind = model.get("kind", "trained") if isinstance(model, dict) else getattr(model, "kind", "trained")
    return str(kind)


AnyQualityModel = Annotated[
    Annotated[QualityModelConfig, Tag("trained")] | Annotated[ClassifierConfig, Tag("classifier")],
    Discriminator(_kind),
    AfterValidator(of_probability),
]


class QualityConfig(StageConfig):
    """Quality as a signal."""

    model: AnyQualityModel = Field(description="the classifier")
