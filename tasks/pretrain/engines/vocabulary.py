"""Embedding and output layer of which each rank holds its share of the words (Megatron-LM, section 3).

No rank has the logits of all words: of each token go the highest logit, the sum of exponentials and the target's logit
to the others, three numbers. As in the model's own loss, logits exist for a chunk of tokens at a time, and both
gradients are computed with them.

Shapes: B batch, T tokens, C width, N batch × tokens, V this rank's words.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from models.presets import LOSS_CHUNK
from models.transformer import IGNORED, Head
from tasks.pretrain.engines.sums import SummedBackward, SummedForward


class CutEmbedding(nn.Module):
    """The words from `first` on; a word of another rank's is zero here, and the sum over the ranks is the embedding."""

    def __init__(self, layer: nn.Embedding, first: int, group: ProcessGroup) -> None:
        super().__init__()
        self.weight, self.first, self.group = layer.weight, first, group

    def forward(self, ids_BT: Tensor) -> Tensor:
        here_BT = ids_BT - self.first
        elsewhere_BT = (here_BT < 0) | (here_BT >= len(self.weight))
        x_BTC = F.embedding(here_BT.masked_fill(elsewhere_BT, 0), self.weight)
        x_BTC = x_BTC.masked_fill(elsewhere_BT[..., None], 0.0)
        summed_BTC: Tensor = SummedForward.apply(x_BTC, self.group)  # type: ignore[no-untyped-call]
        return summed_BTC


class CutHead(nn.Module):
    """The mean cross-entropy in nats over targets that are not IGNORED, the same on each rank; learned with the layer's
    own z-loss."""

    def __init__(self, layer: Head, first: int, group: ProcessGroup) -> None:
        super().__init__()
        self.weight, self.first, self.group, self.z_loss = layer.weight, first, group, layer.z_loss

    def forward(self, x_BTC: Tensor, targets_BT: Tensor) -> Tensor:
        x_NC, targets_N = x_BTC.flatten(0, 1), targets_BT.flatten()
        if not torch.is_grad_enabled():
            return _cross_entropy(x_NC, self.weight, targets_N, self.first, self.group, None, None)
        x_NC = SummedBackward.apply(x_NC, self.group)  # type: ignore[no-untyped-call]
        loss: Tensor = _CutCrossEntropy.apply(  # type: ignore[no-untyped-call]
            x_NC, self.weight, targets_N, self.first, self.group, self.z_loss
        )
        return loss


class _CutCrossEntropy(torch.autograd.Function):
    """As `models.transformer.ChunkedCrossEntropy`, over words on several ranks; dx is this rank's summand."""

    @staticmethod
    def forward(
        ctx: Any, x_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, first: int, group: ProcessGroup, z_loss: float
    ) -> Tensor:
        dx_NC = torch.empty_like(x_NC)
        dweight_VC = torch.zeros_like(weight_VC, dtype=torch.float32)
        loss = _cross_entropy(x_NC, weight_VC, targets_N, first, group, dx_NC, dweight_VC, z_loss)
        ctx.dx_NC, ctx.dweight_VC, ctx.dtype = dx_NC, dweight_VC, weight_VC.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        return ctx.dx_NC * dloss, (ctx.dweight_VC * dloss).to(ctx.dtype), None, None, None, None


def _cross_entropy(
    x_NC: Tensor,
    weight_VC: Tensor,
    targets_N: Tensor,
    first: int,
    group: ProcessGroup,
    dx_NC: Tensor | None,
    dweight_VC: Tensor | None,
    z_loss: float = 0.0,
) -> Tensor:
    """Mean loss; fills `dx_NC` and adds to `dweight_VC` where given."""
    kept_N = targets_N != IGNORED
    count = kept_N.sum()
    total = torch.zeros((), dtype=torch.float32, device=x_NC.device)
    for start in range(0, len(x_NC), LOSS_CHUNK):
        part = slice(start, start + LOSS_CHUNK)
        here_N = targets_N[part] - first
        mine_N = kept_N[part] & (here_N >= 0) & (here_N < len(weight_VC))
        word_N1 = here_N.masked_fill(~mine_N, 0)[:, None]
        logits_NV = F.linear(x_NC[part], weight_VC).float()
        highest_N = logits_NV.amax(dim=-1)
        dist.all_reduce(highest_N, dist.ReduceOp.MAX, group=group)
        logits_NV -= highest_N[:, None]
        target_N = logits_NV.gather(1, word_N1)[:, 0] * mine_N
        exponentials_NV = logits_NV.exp_()
        shared_2N = torch.stack((target_N, exponentials_NV.sum(dim=-1)))
        dist.all_reduce(shared_2N, group=group)
        total += ((shared_2N[1].log() - shared_2N[0]) * kept_N[part]).sum()
        if dx_NC is None or dweight_VC is None:
            continue
        dlogits_NV = exponentials_NV.div_(shared_2N[1][:, None])
        if z_loss:
            dlogits_NV *= 1 + 2 * z_loss * (shared_2N[1].log() + highest_N)[:, None]
        dlogits_NV.scatter_add_(1, word_N1, -mine_N[:, None].float())
        dlogits_NV *= (kept_N[part] / count)[:, None]
        dlogits_NV = dlogits_NV.to(x_NC.dtype)
        dx_NC[part] = dlogits_NV @ weight_VC
        dweight_VC += dlogits_NV.T @ x_NC[part]
    return total / count
