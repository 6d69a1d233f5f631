"""The settings of pruning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from tasks.stage.config import StageConfig


class PruneConfig(StageConfig):
    """How much of the model is kept. The parts that it uses least on the instructions are left out."""

    layers: int | None = Field(None, ge=1, description="layers to keep (default: all)")
    feed_forward: int | None = Field(None, ge=1, description="neurons to keep in each layer (default: all)")
    kv_heads: int | None = Field(
        None, ge=1, description="key/value heads to keep in each layer, each with its query heads (default: all)"
    )
    width: int | None = Field(None, ge=1, description="channels of the hidden states to keep (default: all)")
    calibration_rows: int = Field(256, ge=1, description="conversations to measure importance on")
    measured_rows: int = Field(128, ge=1, description="further conversations to measure the loss on")

    def beyond(self, sizes: Mapping[str, int]) -> str:
        """A sentence about a setting that exceeds what a model of these sizes has, or "" if none does."""
        for name, size in sizes.items():
            kept = getattr(self, name)
            if kept is not None and kept > size:
                return f"prune.{name} is {kept:,}, but the model has {size:,}"
        return ""

    @model_validator(mode="after")
    def _leaves_something_out(self) -> Self:
        if self.layers is self.feed_forward is self.kv_heads is self.width is None:
            raise ValueError("it leaves nothing out: set layers, feed_forward, kv_heads or width")
        return self
