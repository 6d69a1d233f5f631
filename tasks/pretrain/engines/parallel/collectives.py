"""All-reduce in one direction only, around the sharded layers of tensor parallelism."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup


class AllReduceBackward(torch.autograd.Function):
    """Identity in the forward pass, all-reduce of the gradient in the backward pass (Megatron-LM's f)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        summed = gradient.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(summed, group=ctx.group)
        return summed, None


class AllReduceForward(torch.autograd.Function):
    """All-reduce in the forward pass, identity in the backward pass (Megatron-LM's g)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        summed = x.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(summed, group=group)
        return summed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
