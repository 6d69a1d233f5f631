"""What the quality classifier is trained on, and how."""

from __future__ import annotations

from pydantic import Field

from tasks.filter.fasttext_model.config import TrainingConfig
from tasks.stage.config import StageConfig


class QualityModelConfig(StageConfig):
    """Good text against ordinary text, both from the pipeline's own documents."""

    positive: list[str] = Field(min_length=1, description="sources of good text: what the corpus should be more like")
    negative: list[str] = Field([], description="sources of ordinary text; all but the positive ones when empty")
    sample: int = Field(20_000, ge=50, description="documents of each side at the most, chosen by the hash of the id")
    characters: int = Field(
        2000, ge=100, description="of each document's beginning that are trained on; the whole text is scored"
    )
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="fastText's parameters")


class QualityConfig(StageConfig):
    """Quality as a signal."""

    model: QualityModelConfig = Field(description="the classifier, trained once")
