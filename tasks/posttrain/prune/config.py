"""What a profile sets for pruning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from tasks.stage.config import StageConfig


class PruneConfig(StageConfig):
    """How much of the model is kept; what is left out is what it uses least on the instructions."""

    layers: int | None = Field(None, ge=1, description="layers that are kept (default: all)")
    feed_forward: int | None = Field(None, ge=1, description="neurons that each layer keeps (default: all)")
    kv_heads: int | None = Field(
        None, ge=1, description="key/value heads that each layer keeps, each with its query heads (default: all)"
    )
    width: int | None = Field(None, ge=1, description="channels of the hidden states that are kept (default: all)")
    calibration_rows: int = Field(256, ge=1, description="conversations that importance is measured on")
    measured_rows: int = Field(128, ge=1, description="further conversations that the loss is measured on")

    def beyond(self, sizes: Mapping[str, int]) -> str:
        """What is to be kept of a model of these sizes although it has less, in a sentence; "" for nothing."""
        for name, size in sizes.items():
            asked = getattr(self, name)
            if asked is not None and asked > size:
                return f"prune.{name} is {asked:,}, but the model has {size:,}"
        return ""

    @model_validator(mode="after")
    def _leaves_something_out(self) -> Self:
        if self.layers is self.feed_forward is self.kv_heads is self.width is None:
            raise ValueError("it leaves nothing out: set layers, feed_forward, kv_heads or width")
        return self
