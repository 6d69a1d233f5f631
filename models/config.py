"""The model's half of a profile: one size dial, and overrides for those who want a known shape.

`depth` is the dial; everything left at None follows from it by the rules in `models/presets.py`. The vocabulary
is not a choice made here: it comes with the tokenizer. No torch, so that reading a profile stays fast.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ModelConfig(BaseModel):
    """Choices that bear identity. Whether the shape can be built is checked by `models.presets.derive`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    family: Literal["gpt2", "llama", "mistral"] = Field(
        "llama", description="architecture: GPT-2, LLaMA, or Mistral (LLaMA with sliding-window attention)"
    )
    depth: int = Field(ge=1, description="layers: the one size dial, from which the rest is derived")
    context: int = Field(ge=2, description="tokens of a training sequence, and the longest that the model accepts")
    width: int | None = Field(None, ge=2, description="size of the residual stream; derived: 64 × depth")
    heads: int | None = Field(None, ge=1, description="attention heads; derived: width / (32, 64 or 128)")
    kv_heads: int | None = Field(
        None, ge=1, description="key/value heads (not for gpt2); derived: heads, for mistral heads / 4"
    )
    feed_forward: int | None = Field(
        None, ge=1, description="size of the feed-forward layer; derived: 8/3 of the width rounded up, for gpt2 4 ×"
    )
    sliding_window: int | None = Field(
        None, ge=1, description="tokens that a token sees, itself included (mistral only); derived: context / 2"
    )
    rope_theta: float | None = Field(
        None, gt=0, description="base of the rotary positions (not for gpt2); derived: 10000"
    )
    tie_embeddings: bool | None = Field(
        None, description="the output layer reuses the embedding matrix; derived: for gpt2, and below width 2048"
    )
    norm_eps: float | None = Field(
        None, gt=0, description="added to the variance in LayerNorm and RMSNorm; derived: 1e-5"
    )
