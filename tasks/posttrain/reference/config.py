"""What log-probabilities under a reference model depend on, beside the model and the pairs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.posttrain.config import PosttrainConfig
from tasks.stage.config import StageConfig


class ReferenceConfig(StageConfig):
    """No loss, no beta, no learning rate: any of these takes the same artifact."""

    max_length: int | None = Field(None, ge=8, description="maximum tokens of a rendered pair (default: the context)")
    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="that of the training")
    quantize: Literal["none", "nf4"] = Field("none", description="that of the model below an adapter")

    @classmethod
    def of(cls, config: PosttrainConfig) -> ReferenceConfig:
        """Those of a method."""
        quantize = config.adapter.quantize if config.adapter else "none"
        return cls(max_length=config.max_length, precision=config.precision, quantize=quantize)
