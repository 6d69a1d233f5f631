"""How far a format may be from the checkpoint, and the usual limits by how many bits it keeps."""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class Tolerance(StageConfig):
    """Largest allowed difference between a format and the checkpoint on held-out text."""

    max_divergence: float = Field(gt=0, description="mean KL divergence of the next-token distribution, in nats")
    max_perplexity_increase: float = Field(gt=0, description="relative, so 0.01 is one per cent")
    same_greedy: bool = Field(description="require the checkpoint's greedy text, near-ties excepted")


EXACT = Tolerance(max_divergence=1e-6, max_perplexity_increase=1e-4, same_greedy=True)
HALF = Tolerance(max_divergence=1e-4, max_perplexity_increase=1e-3, same_greedy=True)
EIGHT_BIT = Tolerance(max_divergence=0.01, max_perplexity_increase=0.02, same_greedy=False)
FOUR_BIT = Tolerance(max_divergence=0.15, max_perplexity_increase=0.15, same_greedy=False)
