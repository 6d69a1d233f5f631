"""What a profile says of the release: which formats, and how far each may be from the checkpoint."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.stage.config import StageConfig

Format = Literal["safetensors", "int8", "int4", "gguf-f32", "gguf-f16", "gguf-q8_0", "gguf-q4_0"]


class Tolerance(StageConfig):
    """How far a format may be from the checkpoint on held-out text."""

    max_divergence: float = Field(gt=0, description="mean KL divergence of the next-token distribution, nats")
    max_perplexity_increase: float = Field(gt=0, description="relative, so 0.01 is one per cent")
    same_greedy: bool = Field(description="greedy text must be the checkpoint's, near-ties apart")


EXACT = Tolerance(max_divergence=1e-6, max_perplexity_increase=1e-4, same_greedy=True)
HALF = Tolerance(max_divergence=1e-4, max_perplexity_increase=1e-3, same_greedy=True)
EIGHT_BIT = Tolerance(max_divergence=0.01, max_perplexity_increase=0.02, same_greedy=False)
FOUR_BIT = Tolerance(max_divergence=0.15, max_perplexity_increase=0.15, same_greedy=False)
TOLERANCES: dict[Format, Tolerance] = {
    "safetensors": EXACT,
    "int8": EIGHT_BIT,
    "int4": FOUR_BIT,
    "gguf-f32": HALF,  # llama.cpp rounds inside its kernels
    "gguf-f16": HALF,
    "gguf-q8_0": EIGHT_BIT,
    "gguf-q4_0": FOUR_BIT,
}


class ExportConfig(StageConfig):
    """Formats, and how each is proved."""

    formats: list[Format] = Field(
        ["safetensors", "int8", "int4", "gguf-f16", "gguf-q8_0", "gguf-q4_0"],
        min_length=1,
        description="what the release holds; int8 and int4 are bitsandbytes (LLM.int8, NF4) for transformers",
    )
    tolerances: dict[Format, Tolerance] = Field(
        default_factory=dict, description="instead of the usual ones, by format"
    )
    prompts: list[str] = Field(
        ["The history of", "In the year 1850", "What is a river?"],
        min_length=1,
        description="beginnings whose greedy continuations are compared, as text and as a chat",
    )
    greedy_tokens: int = Field(32, ge=1, description="length of those continuations")
    positions: int = Field(96, ge=8, description="places in held-out text where whole distributions are compared")
    tie: float = Field(0.02, ge=0, description="nats between the two likeliest tokens under which either is greedy")
    licence: str = Field("", description="what the model card says of the licence of data and weights")

    def tolerance(self, name: Format) -> Tolerance:
        """The profile's, or the usual one."""
        return self.tolerances.get(name, TOLERANCES[name])
