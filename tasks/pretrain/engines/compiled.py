"""torch.compile of a model's blocks, one by one: one compilation serves all, and what an engine hooks around a block
stays out.

The whole model compiled as one took half as long again and ran no faster (5.5M parameters, one CPU thread).

A forward pass that nothing is learned from runs as it was written: a second compilation for it would take longer than
all validation, its attention can be looked into, and in CUDA graphs each block would overwrite what the one before
handed to it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from models.transformer import Transformer

# Without CUDA graphs, which reduce-overhead is for: the search for kernels gains nothing from them
MODES = {"default": None, "reduce-overhead": "reduce-overhead", "max-autotune": "max-autotune-no-cudagraphs"}


def compile_blocks(model: Transformer, how: str) -> None:
    """Compile each block for training; `how` as in runtime.pretrain.compile."""
    from torch._dynamo import config  # seconds, which only those who compile have to wait

    # It would cut each block at DDP's buckets, so that sums over ranks begin earlier: they do between blocks anyhow
    config.optimize_ddp = False
    for block in model.blocks:
        block.forward = _only_learning(torch.compile(block.forward, mode=MODES[how]), block.forward)


def _only_learning(learning: Callable[..., Tensor], plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def forward(*given: Tensor) -> Tensor:
        return learning(*given) if torch.is_grad_enabled() else plain(*given)

    return forward
