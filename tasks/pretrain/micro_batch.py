"""How many sequences a forward pass takes where the runtime does not say. No torch: `plan` asks too."""

from __future__ import annotations

CPU_TOKENS, GPU_TOKENS = 4_096, 32_768  # of a forward pass


def usual_micro_batch(share: int, context: int, *, cuda: bool) -> int:
    """The most sequences of `context` tokens that divide a rank's `share` of the global batch and are not too many."""
    most = max(1, min((GPU_TOKENS if cuda else CPU_TOKENS) // context, share))
    return next(size for size in range(most, 0, -1) if share % size == 0)
