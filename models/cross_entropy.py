"""Fused linear cross-entropy, in chunks of tokens, so that the logits of a batch are never materialised.

The gradient with respect to the logits is known as soon as the logits are. So the forward pass computes both gradients
chunk by chunk and drops the logits: the same three matrix products as usual, without (N, V) in memory (Hsu et al. 2024,
Liger Kernel, section 3.2). The vocabulary may be sharded over ranks (Shoeybi et al. 2019, Megatron-LM, section 3): per
token, ranks exchange the maximum logit, the sum of exponentials and the target's logit.

Shapes: C width, N batch × tokens, V the vocabulary, or this rank's shard of it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from models.autocast import multiplied_in
from models.presets import LOSS_CHUNK

IGNORED = -100  # a target without loss, as in torch.nn.functional.cross_entropy
_LINE = 16  # float32 numbers in a cache line


class ChunkedCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of `x_NC @ weight_VC.T` in nats over targets that are not IGNORED; its gradient is that of the
    cross-entropy + `z_loss` × log² Z, Z being the softmax's denominator.

    With a group, `weight_VC` holds the vocabulary from `first` on, and dx is this rank's summand. In float16 gradients
    are divided by the number of tokens only in the backward pass, together with the loss scale: earlier, most would
    underflow.
    """

    @staticmethod
    def forward(
        ctx: Any, x_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, z_loss: float = 0.0, first: int = 0,
        group: ProcessGroup | None = None,
    ) -> Tensor:  # fmt: skip
        dx_NC = torch.empty_like(x_NC) if x_NC.requires_grad else None
        # Summed over chunks in float32: in bf16 the small late terms would be rounded away.
        dweight_VC = torch.zeros_like(weight_VC, dtype=torch.float32) if weight_VC.requires_grad else None
        ctx.divisor = (targets_N != IGNORED).sum() if multiplied_in(x_NC) == torch.float16 else None
        loss = cross_entropy(
            x_NC, weight_VC, targets_N, dx_NC, dweight_VC, z_loss, divided=ctx.divisor is None, first=first, group=group
        )
        ctx.dx_NC, ctx.dweight_VC, ctx.dtype, ctx.given = dx_NC, dweight_VC, weight_VC.dtype, False
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        if ctx.given:
            raise RuntimeError("a second backward pass through one loss: its gradients are freed; recompute the loss")
        if ctx.divisor is not None:
            dloss = dloss / ctx.divisor
        # Scaled in place and freed: a copy would be as large as the head
        dx_NC = None if ctx.dx_NC is None else ctx.dx_NC.mul_(dloss)
        dweight_VC = None if ctx.dweight_VC is None else ctx.dweight_VC.mul_(dloss).to(ctx.dtype)
        ctx.dx_NC, ctx.dweight_VC, ctx.given = None, None, True
        return dx_NC, dweight_VC, None, None, None, None


def cross_entropy(
    x_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, dx_NC: Tensor | None = None, dweight_VC: Tensor | None = None,
    z_loss: float = 0.0, *, divided: bool = True, first: int = 0, group: ProcessGroup | None = None,
) -> Tensor:  # fmt: skip
    """Mean loss; fills `dx_NC` and adds to `dweight_VC` if given, as gradients of the mean, or of the sum if not
    `divided`. Without any target: NaN, as in torch."""
    kept_N1 = (targets_N != IGNORED)[:, None]
    count = kept_N1.sum()
    share_N1 = kept_N1 / count if divided else kept_N1.float()
    total = torch.zeros((), dtype=torch.float32, device=x_NC.device)
    room_NV = _room(min(LOSS_CHUNK, len(x_NC)), len(weight_VC), x_NC.device)
    for start in range(0, len(x_NC), LOSS_CHUNK):
        part = slice(start, start + LOSS_CHUNK)
        logits_NV = _logits(x_NC[part], weight_VC, room_NV)
        word_N1 = targets_N[part, None] - first
        mine_N1 = word_N1 >= 0 if group is None else (word_N1 >= 0) & (word_N1 < len(weight_VC))
        word_N1 = word_N1.masked_fill(~mine_N1, 0)
        highest_N1 = logits_NV.amax(dim=-1, keepdim=True)
        if group is not None:
            dist.all_reduce(highest_N1, dist.ReduceOp.MAX, group=group)
        logits_NV -= highest_N1
        target_N1 = logits_NV.gather(1, word_N1) * mine_N1
        exponentials_NV = logits_NV.exp_()
        z_N1 = exponentials_NV.sum(dim=-1, keepdim=True)
        if group is not None:
            both_2N1 = torch.stack((z_N1, target_N1))
            dist.all_reduce(both_2N1, group=group)
            z_N1, target_N1 = both_2N1
        total += ((z_N1.log() - target_N1) * kept_N1[part]).sum()
        if dx_NC is None and dweight_VC is None:
            continue
        if z_loss:
            exponentials_NV *= 1 + 2 * z_loss * (z_N1.log() + highest_N1)
        dlogits_NV = exponentials_NV.scatter_add_(1, word_N1, -z_N1 * mine_N1)  # times Z, divided below
        _add_gradients(dlogits_NV, share_N1[part] / z_N1, x_NC, weight_VC, part, dx_NC, dweight_VC)
    return total / count


def _add_gradients(
    dlogits_NV: Tensor, scale_N1: Tensor, x_NC: Tensor, weight_VC: Tensor, part: slice, dx_NC: Tensor | None,
    dweight_VC: Tensor | None,
) -> None:  # fmt: skip
    """Add both gradients of a chunk, with rows scaled by `scale_N1`."""
    if multiplied_in(x_NC) == torch.float32:
        # Scale C numbers per row, not V: one pass less over the largest tensor
        if dx_NC is not None:
            dx_NC[part] = (dlogits_NV @ weight_VC).mul_(scale_N1)
        if dweight_VC is not None:
            dweight_VC.addmm_(dlogits_NV.T, x_NC[part] * scale_N1)
        return
    dlogits_NV = dlogits_NV.mul_(scale_N1).to(x_NC.dtype)  # scaled first: Z may be beyond float16
    if dx_NC is not None:
        dx_NC[part] = dlogits_NV @ weight_VC
    if dweight_VC is not None:
        dweight_VC += dlogits_NV.T @ x_NC[part]


def _room(rows: int, vocabulary: int, device: torch.device) -> Tensor:
    """Memory for the logits of a chunk, allocated once. Rows are padded by a cache line, since strides of a power of
    two cause cache conflicts (6 % slower, 128 × 4,096 on a Zen 4)."""
    return torch.empty(rows, vocabulary + _LINE, device=device)[:, :vocabulary]


def _logits(x_NC: Tensor, weight_VC: Tensor, room_NV: Tensor) -> Tensor:
    """Logits in float32, whatever the precision of products."""
    logits_NV = room_NV[: len(x_NC)]
    if multiplied_in(x_NC) == torch.float32:
        return logits_NV.addmm_(x_NC, weight_VC.T, beta=0)
    return logits_NV.copy_(F.linear(x_NC, weight_VC))
