"""What a profile says of the model: a family and one size dial, with overrides for those who need a given shape."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ModelConfig(BaseModel):
    """`depth` derives the rest (`models.presets.derive`); a field left at None is derived."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: Literal["gpt2", "llama", "mistral"] = Field("llama", description="architecture")
    depth: int = Field(4, ge=1, description="layers: the size dial from which the rest is derived")
    context: int = Field(256, ge=8, description="tokens that the model sees at once")
    width: int | None = Field(None, ge=8, description="residual stream; derived as 64 a layer")
    heads: int | None = Field(None, ge=1, description="attention heads; derived as width / 64 (32 below width 256)")
    kv_heads: int | None = Field(None, ge=1, description="key-value heads; derived as heads (no grouping)")
    feed_forward: int | None = Field(None, ge=8, description="hidden units; derived as 4 × width, or 8/3 for SwiGLU")
    sliding_window: int | None = Field(None, ge=1, description="tokens each token looks back on; mistral only")
    rope_theta: float = Field(10_000.0, gt=0, description="base of the rotary frequencies")
    tie_embeddings: bool = Field(True, description="input and output embeddings are one matrix")
    norm_eps: float = Field(1e-5, gt=0, description="added to the variance in normalisations")
