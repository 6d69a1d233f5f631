"""Fused linear cross-entropy, in chunks of tokens, so that the logits of a batch are never materialised.

The gradient with respect to the logits is known as soon as the logits are. So the forward pass computes both gradients
chunk by chunk and drops the logits: the same three matrix products as usual, without (N, V) in memory (Hsu et al. 2024,
Liger Kernel, section 3.2). The vocabulary may be sharded over ranks (Shoeybi et al. 2019, Megatron-LM, section 3): per
token, ranks exchange the maximum logit, the sum of exponentials and the target's logit.

Shapes: C width, N batch × tokens, V the vocabulary, or this rank's shard of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from models.kernels.autocast import multiplied_in
from models.kernels.row_kernels import RowKernels, row_kernels
from models.presets import LOGITS_ALIGNED, LOSS_CHUNK, LOSS_CHUNK_CUDA

IGNORED = -100  # a target without loss, as in torch.nn.functional.cross_entropy
_LINE = 16  # float32 numbers in a cache line


class ChunkedCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of `x_NC @ weight_VC.T` in nats over targets that are not IGNORED. Its gradient is that of the
    cross-entropy + `z_loss` × log² Z, where Z is the softmax's denominator.

    With a group, `weight_VC` holds the vocabulary from `first` on, and dx is this rank's summand. In float16 gradients
    are divided by the number of tokens only in the backward pass, together with the loss scale: earlier, most would
    underflow.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_NC: Tensor,
        weight_VC: Tensor,
        targets_N: Tensor,
        z_loss: float = 0.0,
        first: int = 0,
        group: ProcessGroup | None = None,
    ) -> Tensor:
        dx_NC = torch.empty_like(x_NC) if x_NC.requires_grad else None
        # Summed over chunks in float32: in bfloat16 the small late terms would be rounded away
        dweight_VC = torch.zeros_like(weight_VC, dtype=torch.float32) if weight_VC.requires_grad else None
        ctx.divisor = (targets_N != IGNORED).sum().clamp(min=1) if multiplied_in(x_NC) == torch.float16 else None
        loss = cross_entropy(
            x_NC, weight_VC, targets_N, dx_NC, dweight_VC, z_loss, divided=ctx.divisor is None, first=first, group=group
        )
        ctx.dx_NC, ctx.dweight_VC, ctx.dtype, ctx.used = dx_NC, dweight_VC, weight_VC.dtype, False
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        if ctx.used:
            raise RuntimeError("second backward pass through one loss, whose gradients are freed: recompute the loss")
        if ctx.divisor is not None:
            dloss = dloss / ctx.divisor
        # Scaled in place and freed: a copy would be as large as the head
        dx_NC = None if ctx.dx_NC is None else ctx.dx_NC.mul_(dloss)
        dweight_VC = None if ctx.dweight_VC is None else ctx.dweight_VC.mul_(dloss).to(ctx.dtype)
        ctx.dx_NC, ctx.dweight_VC, ctx.used = None, None, True
        return dx_NC, dweight_VC, None, None, None, None


def cross_entropy(
    x_NC: Tensor,
    weight_VC: Tensor,
    targets_N: Tensor,
    dx_NC: Tensor | None = None,
    dweight_VC: Tensor | None = None,
    z_loss: float = 0.0,
    *,
    divided: bool = True,
    first: int = 0,
    group: ProcessGroup | None = None,
    record: list[Tensor] | None = None,
) -> Tensor:
    """The mean loss. Fills `dx_NC` and adds to `dweight_VC` if given, as gradients of the mean, or of the sum if not
    `divided`. Without any target it is 0, so that such a micro-batch doesn't contribute to its step. `record` gets, in
    parts, (N, 2) the loss of each token, and whether no token is likelier than its target."""
    kept_N1 = (targets_N != IGNORED)[:, None]
    count = kept_N1.sum().clamp(min=1)
    share_N1 = kept_N1 / count if divided else kept_N1.float()
    batch = Batch(x_NC, weight_VC, targets_N, kept_N1, share_N1, dx_NC, dweight_VC, z_loss, first, group, record)
    if multiplied_in(x_NC) == torch.float32:
        return _in_float32(batch) / count
    rows = LOSS_CHUNK_CUDA if x_NC.is_cuda else LOSS_CHUNK
    return in_half(batch, rows, row_kernels(x_NC.device)) / count


class Batch(NamedTuple):
    """The inputs of the loss, and the destinations of its gradients."""

    x_NC: Tensor
    weight_VC: Tensor
    targets_N: Tensor
    kept_N1: Tensor  # whether a token has a target
    share_N1: Tensor  # of a token in the loss
    dx_NC: Tensor | None
    dweight_VC: Tensor | None
    z_loss: float
    first: int
    group: ProcessGroup | None
    record: list[Tensor] | None = None

    def note(self, nats_N1: Tensor, target_N1: Tensor) -> None:
        """Record a chunk, from the logits of its targets below the highest."""
        if self.record is not None:
            self.record.append(torch.cat((nats_N1, (target_N1 == 0).to(nats_N1.dtype)), dim=1))

    def words(self, part: slice) -> tuple[Tensor, Tensor]:
        """The columns of a chunk's targets, 0 if another rank has them, and whether this rank has them."""
        word_N1 = self.targets_N[part, None] - self.first
        mine_N1 = word_N1 >= 0 if self.group is None else (word_N1 >= 0) & (word_N1 < len(self.weight_VC))
        return word_N1.masked_fill(~mine_N1, 0), mine_N1


def _in_float32(batch: Batch) -> Tensor:
    """The sum of the losses, with products in float32."""
    x_NC, weight_VC, _, kept_N1, share_N1, dx_NC, dweight_VC, z_loss, _, group, _ = batch
    total = torch.zeros((), dtype=torch.float32, device=x_NC.device)
    room_NV = _room(min(LOSS_CHUNK, len(x_NC)), len(weight_VC), x_NC.device)
    for start in range(0, len(x_NC), LOSS_CHUNK):
        part = slice(start, start + LOSS_CHUNK)
        chunk_NC = x_NC[part]
        logits_NV = room_NV[: len(chunk_NC)].addmm_(chunk_NC, weight_VC.T, beta=0)
        word_N1, mine_N1 = batch.words(part)
        highest_N1 = logits_NV.amax(dim=-1, keepdim=True)
        if group is not None:
            dist.all_reduce(highest_N1, dist.ReduceOp.MAX, group=group)
        logits_NV -= highest_N1
        target_N1 = logits_NV.gather(1, word_N1) * mine_N1
        exponentials_NV = logits_NV.exp_()
        z_N1 = exponentials_NV.sum(dim=-1, keepdim=True)
        z_N1, target_N1 = _summed(z_N1, target_N1, group)
        nats_N1 = z_N1.log() - target_N1
        batch.note(nats_N1, target_N1)
        total += (nats_N1 * kept_N1[part]).sum()
        if dx_NC is None and dweight_VC is None:
            continue
        if z_loss:
            exponentials_NV *= 1 + 2 * z_loss * (z_N1.log() + highest_N1)
        dlogits_NV = exponentials_NV.scatter_add_(1, word_N1, -z_N1 * mine_N1)  # times Z, divided below
        # Scale C numbers per row, not V: one pass less over the largest tensor
        scale_N1 = share_N1[part] / z_N1
        if dx_NC is not None:
            dx_NC[part] = (dlogits_NV @ weight_VC).mul_(scale_N1)
        if dweight_VC is not None:
            dweight_VC.addmm_(dlogits_NV.T, chunk_NC * scale_N1)
    return total


def in_half(batch: Batch, rows: int, kernels: RowKernels) -> Tensor:
    """The sum of the losses, `rows` tokens at a time, with products in 16 bits and everything else in float32."""
    x_NC, weight_VC, _, kept_N1, share_N1, dx_NC, dweight_VC, z_loss, _, group, _ = batch
    half = multiplied_in(x_NC)
    weight_VC = weight_VC.to(half)  # once: autocast does not cast for products into a given tensor
    total = torch.zeros((), dtype=torch.float32, device=x_NC.device)
    room_NV = aligned_room(min(rows, len(x_NC)), len(weight_VC), half, x_NC.device)
    for start in range(0, len(x_NC), rows):
        part = slice(start, start + rows)
        chunk_NC = x_NC[part].to(half)
        logits_NV = room_NV[: len(chunk_NC)].addmm_(chunk_NC, weight_VC.T, beta=0)
        word_N1, mine_N1 = batch.words(part)
        highest_N1, z_N1, logit_N1 = kernels.statistics(logits_NV, word_N1)
        if group is not None:
            own_N1 = highest_N1.clone()
            dist.all_reduce(highest_N1, dist.ReduceOp.MAX, group=group)
            z_N1 = z_N1 * (own_N1 - highest_N1).exp()
        z_N1, target_N1 = _summed(z_N1, (logit_N1 - highest_N1) * mine_N1, group)
        nats_N1 = z_N1.log() - target_N1
        batch.note(nats_N1, target_N1)
        total += (nats_N1 * kept_N1[part]).sum()
        if dx_NC is None and dweight_VC is None:
            continue
        scale_N1 = share_N1[part] / z_N1
        if z_loss:
            scale_N1 = scale_N1 * (1 + 2 * z_loss * (z_N1.log() + highest_N1))
        kernels.exponentials_(logits_NV, highest_N1, scale_N1)
        dtarget_N1 = (logit_N1 - highest_N1).exp() * scale_N1 - share_N1[part] * mine_N1
        dlogits_NV = logits_NV.scatter_(1, word_N1, dtarget_N1.to(half))
        if dx_NC is not None:
            dx_NC[part] = dlogits_NV @ weight_VC
        if dweight_VC is not None:
            add_product(dweight_VC, dlogits_NV.T, chunk_NC)
    return total


def _summed(z_N1: Tensor, target_N1: Tensor, group: ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """The sums of both over the ranks."""
    if group is None:
        return z_N1, target_N1
    both_2N1 = torch.stack((z_N1, target_N1))
    dist.all_reduce(both_2N1, group=group)
    return both_2N1[0], both_2N1[1]


def add_product(sum_VC: Tensor, left_VN: Tensor, right_NC: Tensor) -> None:
    """Add a product of 16-bit matrices to a float32 one, without a product in memory on GPUs that can."""
    if sum_VC.is_cuda and not torch.compiler.is_compiling() and torch.cuda.get_device_capability(sum_VC.device) >= (8,):
        torch.addmm(sum_VC, left_VN, right_NC, out_dtype=torch.float32, out=sum_VC)
    else:
        sum_VC += left_VN @ right_NC


def _room(rows: int, vocabulary: int, device: torch.device) -> Tensor:
    """Memory for the logits of a chunk, allocated once. Rows are padded by a cache line, since strides of a power of
    two cause cache conflicts (6 % slower, 128 × 4,096 on a Zen 4)."""
    return torch.empty(rows, vocabulary + _LINE, device=device)[:, :vocabulary]


def aligned_room(rows: int, vocabulary: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Like `_room` in 16 bits, with aligned rows whatever the vocabulary: unaligned rows, such as GPT-2's of 50,257
    numbers, have only slow kernels. The padding is zeros, as oneDNN on CPUs with AMX multiplies it by zero, and
    uninitialised memory may be NaN."""
    padded = -(-vocabulary // LOGITS_ALIGNED) * LOGITS_ALIGNED
    room = torch.empty(rows, padded, dtype=dtype, device=device)
    room[:, vocabulary:] = 0
    return room[:, :vocabulary]
