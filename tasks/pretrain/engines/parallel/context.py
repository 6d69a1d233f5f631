"""Context parallelism: each rank has a part of every row's tokens, and attention sees all of them.

DeepSpeed-Ulysses (Jacobs et al. 2023), section 3.1: all layers but attention work on each token by itself, so each rank
takes a share of them. Before attention the ranks exchange tokens for heads: each then has all tokens of its own heads,
for any kernel and any mask. After attention they exchange back. That is two all-to-alls a layer, each of the size of a
rank's activations, whatever the number of ranks. Weights are whole on each rank, and gradients are averaged over these
ranks as over those of other rows. The model knows only its `share`.

Shapes: B batch, T tokens of this rank, H heads, D head size, R ranks, J heads of queries, keys and values of one rank.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from models.kernels.attention import Mask, attend
from models.transformer import Attention, Transformer
from tasks.pretrain.engines.parallel.collectives import AllToAll


def share_context(model: Transformer, rank: int, ranks: int, group: ProcessGroup) -> None:
    """Give this rank its share of the tokens. Its loss is then that of its own targets."""
    model.share = (rank, ranks)
    for module in model.modules():
        if isinstance(module, Attention):
            module.attend = functools.partial(attend_to_all, group=group, ranks=ranks)


def attend_to_all(
    q_BTHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, mask: Mask, *, group: ProcessGroup, ranks: int
) -> Tensor:
    """Attention (B, T, H, D) of this rank's tokens to those of all ranks."""
    batch, tokens, heads, size = q_BTHD.shape
    # Queries, keys and values go in one message: for each rank, the heads that it will compute
    parts = [x.reshape(batch, tokens, ranks, -1, size) for x in (q_BTHD, k_BTHD, v_BTHD)]
    each = [part.shape[3] for part in parts]
    sent_RBTJD = torch.cat(parts, dim=3).permute(2, 0, 1, 3, 4)
    whole_RBTJD: Tensor = AllToAll.apply(sent_RBTJD, group)  # type: ignore[no-untyped-call]
    # R is now the rank that the tokens came from, in the order of the row
    q, k, v = whole_RBTJD.transpose(0, 1).reshape(batch, ranks * tokens, sum(each), size).split(each, dim=2)
    y_RBTHD = attend(q, k, v, mask).reshape(batch, ranks, tokens, each[0], size).transpose(0, 1)
    mine_RBTHD: Tensor = AllToAll.apply(y_RBTHD, group)  # type: ignore[no-untyped-call]
    return mine_RBTHD.permute(1, 2, 0, 3, 4).reshape(batch, tokens, heads, size)
