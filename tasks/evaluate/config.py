"""What a profile sets for evaluation."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class EvaluateConfig(StageConfig):
    """Which benchmarks, and how much of each."""

    tasks: list[str] | None = Field(None, description="benchmarks by file name (default: all that download made)")
    max_items: int | None = Field(None, ge=1, description="use only the first so many questions of each benchmark")
    validation_tokens: int | None = Field(
        None, ge=1, description="held-out tokens for bits per byte, evenly spread (default: all)"
    )
    dirty_share: float = Field(
        0.0, ge=0, lt=1, description="a question with a larger share of its n-grams in the training text is dirty"
    )
    batch_size: int = Field(
        32, ge=1, description="sequences in a forward pass; padding changes the last digits of scores"
    )
