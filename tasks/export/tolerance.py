"""How far a format may be from the checkpoint, and the usual limits by how many bits it keeps.

They are about twice what sound files of three models lost (`python -m benchmarks.export.ladder`), of 1.3M, 16M and 135M
weights: those that learned more lose more by rounding, whatever their size, so that no limit is by size; larger models
were not measured. Blocks of two bits throughout were measured on models that learned little alone. That a file computes
what it says is held much more tightly, by the divergence of the runtime.
"""

from __future__ import annotations

from pydantic import Field

from tasks.stage.config import StageConfig


class Tolerance(StageConfig):
    """Largest allowed difference between a format and the checkpoint on held-out text."""

    max_divergence: float = Field(gt=0, description="mean KL divergence of the next-token distribution, in nats")
    max_perplexity_increase: float = Field(gt=0, description="relative, so 0.01 is one per cent")
    max_runtime_divergence: float = Field(
        gt=0, description="the same, from the checkpoint's own program with the format's weights in it"
    )
    max_weight_error: float = Field(
        gt=0, description="of a row of a matrix, relative to it: ‖written − checkpoint‖ / ‖checkpoint‖"
    )
    same_greedy: bool = Field(description="require the checkpoint's greedy text, near-ties excepted")


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
# Activations are rounded to 8 bits as well: most of what that costs is the runtime's
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
# Plain rounding costs models that learned much the most: half of the perplexity, of SmolLM2-135M
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
