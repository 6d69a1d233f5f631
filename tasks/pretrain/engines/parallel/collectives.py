"""Collectives with gradients: all-reduce in one direction only, around the sharded layers of tensor parallelism, and
the exchange of tokens for heads of context parallelism."""

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


class AllToAll(torch.autograd.Function):
    """Send part i of the first dimension to rank i, and put what that rank sends in its place. Its own inverse."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _exchanged(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _exchanged(gradient, ctx.group), None


def _exchanged(x: Tensor, group: ProcessGroup) -> Tensor:
    sent = x.contiguous()
    received = torch.empty_like(sent)
    torch.distributed.all_to_all_single(received, sent, group=group)
    return received
