"""torch.compile of a model's blocks, one by one: one compilation serves all, and an engine's hooks stay outside.

Compiling the whole model took 1.5 times as long and ran no faster (5.5M parameters, one CPU thread).

Forward passes without gradients run eagerly: a second compilation for them would take longer than all validation,
insight can hook into their attention, and with CUDA graphs each block would overwrite its predecessor's output.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from models.transformer import Transformer

# max-autotune without CUDA graphs, which are reduce-overhead's: tuning gains nothing from them
MODES = {"default": None, "reduce-overhead": "reduce-overhead", "max-autotune": "max-autotune-no-cudagraphs"}


def compile_blocks(model: Transformer, how: str) -> None:
    """Compile each block for training; `how` as in runtime.pretrain.compile."""
    from torch._dynamo import config  # takes seconds to import

    # It would split each block at DDP's buckets to overlap all-reduce, which overlaps between blocks anyway
    config.optimize_ddp = False
    for block in model.blocks:
        block.forward = _with_gradients_only(torch.compile(block.forward, mode=MODES[how]), block.forward)


def _with_gradients_only(compiled: Callable[..., Tensor], eager: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def forward(*given: Tensor) -> Tensor:
        return compiled(*given) if torch.is_grad_enabled() else eager(*given)

    return forward
