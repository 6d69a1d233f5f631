"""How the quality classifier is trained."""

from __future__ import annotations

from pydantic import Field

from tasks.filter.fasttext_model.config import TrainingConfig
from tasks.stage.config import StageConfig


class QualityModelConfig(StageConfig):
    """Good against ordinary text, both from the pipeline's own documents."""

    positive: list[str] = Field(min_length=1, description="sources of good text, which the corpus should resemble")
    negative: list[str] = Field([], description="sources of ordinary text; empty for all sources that are not positive")
    sample: int = Field(20_000, ge=50, description="maximum documents per class, chosen by the hash of their ID")
    characters: int = Field(
        2000,
        ge=100,
        description="characters at the beginning of each document to train on; scoring uses the whole text",
    )
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="fastText's parameters")


class QualityConfig(StageConfig):
    """Quality as a signal."""

    model: QualityModelConfig = Field(description="the classifier")
