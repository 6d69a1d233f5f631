"""The model section of a profile: its depth, and overrides of the values derived from it.

Everything left at None follows from `depth` by the rules in `models/presets.py`. The vocabulary size is the
tokenizer's. No torch, so that reading a profile stays fast.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_LAYERS, MOST_WIDE = 10_000, 1 << 24  # beyond all existing models, and within what `plan` can compute
MOST_TOKENS = 1 << 24  # of a context: 16 times the longest of available models


class ModelConfig(BaseModel):
    """The settings of the model's shape. `models.presets.derive` checks that it can be built."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    family: Literal["gpt2", "llama", "mistral", "qwen3", "qwen3_moe", "gemma3", "olmo3"] = Field(
        "llama",
        description="architecture: GPT-2, LLaMA, Mistral (LLaMA with sliding-window attention), Qwen3 (LLaMA with "
        "norms of queries and keys, and its own head size), Qwen3-MoE (Qwen3 with a mixture of experts), Gemma 3 or "
        "OLMo 3 (both with layers that see a window, and some that see the whole context)",
    )
    depth: int = Field(ge=1, le=MOST_LAYERS, description="number of layers, from which the rest is derived")
    context: int = Field(
        ge=2,
        le=MOST_TOKENS,
        description="context length: tokens of a training sequence, and the maximum that the model accepts",
    )
    width: int | None = Field(None, ge=2, le=MOST_WIDE, description="hidden size (default: 64 × depth)")
    heads: int | None = Field(None, ge=1, le=MOST_WIDE, description="attention heads (default: width / 32, 64 or 128)")
    kv_heads: int | None = Field(
        None,
        ge=1,
        le=MOST_WIDE,
        description="key/value heads, not for gpt2 (default: heads, for mistral heads / 4, for qwen3, qwen3_moe and "
        "gemma3 heads / 2)",
    )
    head_size: int | None = Field(
        None,
        ge=2,
        le=MOST_WIDE,
        exclude_if=lambda value: value is None,  # so that keys from before this field stay valid
        description="channels of an attention head, qwen3, qwen3_moe and gemma3 only (default: 32, 64 or 128 by the "
        "width)",
    )
    feed_forward: int | None = Field(
        None,
        ge=1,
        le=MOST_WIDE,
        description="feed-forward size, not for qwen3_moe (default: 8/3 × width, rounded up, for gpt2 4 × width)",
    )
    experts: int | None = Field(
        None,
        ge=2,
        le=MOST_WIDE,
        exclude_if=lambda value: value is None,
        description="experts of a layer, qwen3_moe only (default: 8, from width 2048 on 128)",
    )
    experts_per_token: int | None = Field(
        None,
        ge=1,
        le=MOST_WIDE,
        exclude_if=lambda value: value is None,
        description="experts that a token passes in each layer, qwen3_moe only (default: 2, from width 2048 on 8)",
    )
    expert_feed_forward: int | None = Field(
        None,
        ge=1,
        le=MOST_WIDE,
        exclude_if=lambda value: value is None,
        description="feed-forward size of an expert, qwen3_moe only (default: 8/3 × width / experts_per_token, rounded "
        "up)",
    )
    sliding_window: int | None = Field(
        None,
        ge=1,
        description="sliding-window size, for mistral, gemma3 and olmo3 (default: context / 2, for gemma3 context / 4 "
        "up to 1024, for olmo3 up to 4096)",
    )
    global_every: int | None = Field(
        None,
        ge=2,
        exclude_if=lambda value: value is None,
        description="length of the pattern of layers: its last sees the whole context, the others a window, gemma3 and "
        "olmo3 only (default: 6 for gemma3, 4 for olmo3, at most the depth)",
    )
    rope_theta: float | None = Field(
        None,
        gt=0,
        description="base of the rotary embeddings, not for gpt2 (default: 10000, for gemma3 1000000, for olmo3 "
        "500000)",
    )
    local_rope_theta: float | None = Field(
        None,
        gt=0,
        exclude_if=lambda value: value is None,
        description="base of the rotary embeddings in layers with a window, gemma3 only (default: 10000)",
    )
    tie_embeddings: bool | None = Field(
        None,
        description="share the embedding matrix with the output layer, not for gemma3, which always does, and olmo3, "
        "which never does (default: for gpt2, and below width 2048)",
    )
    norm_eps: float | None = Field(
        None,
        gt=0,
        description="epsilon of LayerNorm and RMSNorm (default: 1e-5, for qwen3, qwen3_moe, gemma3 and olmo3 1e-6)",
    )
