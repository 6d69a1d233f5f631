"""Sums over the ranks that share a layer, in one direction only: what surrounds a layer that is cut."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup


class SummedBackward(torch.autograd.Function):
    """Nothing forward; backward the sum of what each rank's outputs ask of the same input (Megatron-LM's f)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        summed = gradient.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(summed, group=ctx.group)
        return summed, None


class SummedForward(torch.autograd.Function):
    """Forward the sum over the ranks, backward nothing (Megatron-LM's g)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        summed = x.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(summed, group=group)
        return summed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
