"""What a profile says of evaluation."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class EvaluateConfig(StageConfig):
    """Which benchmarks, and how much of each."""

    tasks: list[str] | None = Field(None, description="benchmarks by file name; all that download made when empty")
    max_items: int | None = Field(None, ge=1, description="questions of each benchmark at the most, the first ones")
    validation_tokens: int | None = Field(
        None, ge=1, description="held-out tokens for bits per byte, evenly spread; all when empty"
    )
    dirty_share: float = Field(
        0.0, ge=0, lt=1, description="of a question's n-grams in the training text; a question with more is dirty"
    )
    batch_size: int = Field(
        32, ge=1, description="sequences of a forward pass; padding shifts scores in the last digits"
    )
