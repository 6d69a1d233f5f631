"""Attention of tokens that several processes hold: the exchange of DeepSpeed-Ulysses.

Jacobs et al. 2023, section 3.1: all layers but attention work on each token by itself, so each rank takes a share of
them. Before attention the ranks exchange tokens for heads: each then has all tokens of its own heads, for any kernel
and any mask. After attention they exchange back. That is two all-to-alls a layer, each of the size of a rank's
activations, whatever the number of ranks.

Shapes: B batch, T tokens of this rank, H heads, D head size, R ranks, J heads of queries, keys and values of one rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup


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


def attend_to_all(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    q_BTHD: Tensor,
    k_BTHD: Tensor,
    v_BTHD: Tensor,
    *,
    group: ProcessGroup,
    ranks: int,
) -> Tensor:
    """Attention (B, T, H, D) of this rank's tokens to those of all ranks. `attend` computes it for some heads and all
    tokens. Keys and values may have fewer heads, and each number of heads is a multiple of the ranks."""
    batch, tokens, heads, size = q_BTHD.shape
    # Queries, keys and values go in one message: for each rank, the heads that it will compute
    parts = [x.reshape(batch, tokens, ranks, -1, size) for x in (q_BTHD, k_BTHD, v_BTHD)]
    each = [part.shape[3] for part in parts]
    sent_RBTJD = torch.cat(parts, dim=3).permute(2, 0, 1, 3, 4)
    whole_RBTJD: Tensor = AllToAll.apply(sent_RBTJD, group)  # type: ignore[no-untyped-call]
    # R is now the rank that the tokens came from, in the order of the row
    q, k, v = whole_RBTJD.transpose(0, 1).reshape(batch, ranks * tokens, sum(each), size).split(each, dim=2)
    y_RBTHD = attend(q, k, v).reshape(batch, ranks, tokens, each[0], size).transpose(0, 1)
    mine_RBTHD: Tensor = AllToAll.apply(y_RBTHD, group)  # type: ignore[no-untyped-call]
    return mine_RBTHD.permute(1, 2, 0, 3, 4).reshape(batch, tokens, heads, size)
