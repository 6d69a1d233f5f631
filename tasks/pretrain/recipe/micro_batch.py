"""How many sequences a forward pass takes where the runtime does not say. No torch: `plan` asks too."""

from __future__ import annotations

CPU_TOKENS, GPU_TOKENS = 4_096, 32_768  # of a forward pass
PIPELINE_FILL = 4  # micro-batches a stage, with which stages stand idle for less than a fifth of a step


def usual_micro_batch(share: int, context: int, *, cuda: bool, stages: int = 1) -> int:
    """The most sequences of `context` tokens that divide a rank's `share` of the global batch, are not too many, and
    leave enough micro-batches to fill a pipeline of so many stages."""
    most = min((GPU_TOKENS if cuda else CPU_TOKENS) // context, share)
    if stages > 1:
        most = min(most, share // (PIPELINE_FILL * stages))
    most = max(1, most)
    return next(size for size in range(most, 0, -1) if share % size == 0)
