"""How far a format may differ from the checkpoint, and the default limits by the number of bits that it keeps.

The limits are about twice the loss of sound files of three models with 1.3M, 16M and 135M weights (`python -m
benchmarks.export.ladder`). Models that learned more lose more by rounding, whatever their size, so no limit depends on
size. Larger models were not measured, and two-bit blocks throughout only on models that learned little. That a file
computes what it says is checked much more tightly, by the divergence of the runtime.
"""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class Tolerance(StageConfig):
    """The largest allowed difference between a format and the checkpoint on held-out text."""

    max_divergence: float = Field(gt=0, description="mean KL divergence of the next-token distribution, in nats")
    max_perplexity_increase: float = Field(gt=0, description="relative: 0.01 is one per cent")
    max_runtime_divergence: float = Field(
        gt=0, description="mean KL divergence from the checkpoint's own program with the format's weights, in nats"
    )
    max_weight_error: float = Field(
        gt=0, description="relative error of a matrix's row: ‖written − checkpoint‖ / ‖checkpoint‖"
    )
    same_greedy: bool = Field(description="require the checkpoint's greedy text, except at near-ties")


EXACT = Tolerance(
    max_divergence=1e-6,
    max_perplexity_increase=1e-4,
    max_runtime_divergence=1e-6,
    max_weight_error=1e-7,
    same_greedy=True,
)
FLOAT_GRAPH = Tolerance(
    max_divergence=1e-5,
    max_perplexity_increase=1e-4,
    max_runtime_divergence=1e-5,
    max_weight_error=1e-6,
    same_greedy=True,
)
HALF = Tolerance(
    max_divergence=1e-4,
    max_perplexity_increase=1e-3,
    max_runtime_divergence=1e-4,
    max_weight_error=1e-3,
    same_greedy=True,
)
FLOAT16 = Tolerance(
    max_divergence=1e-4,
    max_perplexity_increase=2e-3,
    max_runtime_divergence=1e-6,
    max_weight_error=1e-3,
    same_greedy=False,
)
BFLOAT16 = Tolerance(
    max_divergence=1e-3,
    max_perplexity_increase=1e-2,
    max_runtime_divergence=1e-6,
    max_weight_error=5e-3,
    same_greedy=False,
)
EIGHT_BIT = Tolerance(
    max_divergence=0.01,
    max_perplexity_increase=0.02,
    max_runtime_divergence=0.01,
    max_weight_error=0.03,
    same_greedy=False,
)
SIX_BIT = Tolerance(
    max_divergence=0.03,
    max_perplexity_increase=0.04,
    max_runtime_divergence=0.02,
    max_weight_error=0.1,
    same_greedy=False,
)
# Activations are rounded to 8 bits as well, and most of that cost is in the runtime's divergence
EIGHT_BIT_ACTIVATIONS = Tolerance(
    max_divergence=0.03,
    max_perplexity_increase=0.05,
    max_runtime_divergence=0.03,
    max_weight_error=0.1,
    same_greedy=False,
)
FOUR_BIT = Tolerance(
    max_divergence=0.4,
    max_perplexity_increase=0.4,
    max_runtime_divergence=0.02,
    max_weight_error=0.25,
    same_greedy=False,
)
# Plain rounding costs models that learned much the most: SmolLM2-135M's perplexity rises by half
FOUR_BIT_PLAIN = Tolerance(
    max_divergence=0.7,
    max_perplexity_increase=0.8,
    max_runtime_divergence=0.02,
    max_weight_error=0.4,
    same_greedy=False,
)
THREE_BIT = Tolerance(
    max_divergence=0.6,
    max_perplexity_increase=0.6,
    max_runtime_divergence=0.02,
    max_weight_error=0.4,
    same_greedy=False,
)
TWO_BIT = Tolerance(
    max_divergence=1.2,
    max_perplexity_increase=2.0,
    max_runtime_divergence=0.02,
    max_weight_error=0.6,
    same_greedy=False,
)
