"""The settings that log-probabilities under a reference model depend on, besides the model and the pairs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.posttrain.config import PosttrainConfig
from tasks.stage.config import StageConfig


class ReferenceConfig(StageConfig):
    """Contains no loss, beta or learning rate: trainings that differ only in these share the artifact."""

    max_length: int | None = Field(None, ge=8, description="maximum tokens of a rendered pair (default: the context)")
    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="precision of the training")
    quantize: Literal["none", "nf4"] = Field("none", description="quantization of the model below an adapter")

    @classmethod
    def of(cls, config: PosttrainConfig) -> ReferenceConfig:
        """The settings from a method's config."""
        quantize = "nf4" if config.quantized else "none"
        return cls.model_validate(
            {"max_length": config.max_length, "precision": config.precision, "quantize": quantize}
        )
