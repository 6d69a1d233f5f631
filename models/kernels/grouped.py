"""Products of groups of rows with a matrix each: what the experts of a mixture compute.

On a GPU with bfloat16 they are torch's one kernel for all groups, which never waits for the sizes of groups. Elsewhere
they are one product after another, in the order of the groups, which rounds the same every time. Both are one operation
to torch's compiler and to recomputation.

Shapes: M rows, K inputs, N outputs, E groups.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

CAPABILITY = (8, 0)  # Ampere
ALIGNED = 8  # bfloat16 numbers in the 16 bytes that rows begin at multiples of


def _has_kernel(x_MK: Tensor, weight_ENK: Tensor) -> bool:
    if not x_MK.is_cuda or x_MK.dtype != torch.bfloat16 or torch.version.hip is not None:
        return False
    aligned = all(size % ALIGNED == 0 for size in weight_ENK.shape[1:])
    return aligned and torch.cuda.get_device_capability(x_MK.device) >= CAPABILITY


def _groups(ends_E: Tensor) -> list[tuple[int, int]]:
    return list(pairwise((0, *ends_E.tolist())))


@torch.library.custom_op("gristmill::grouped_linear", mutates_args=())
def grouped_linear(x_MK: Tensor, weight_ENK: Tensor, ends_E: Tensor) -> Tensor:
    """(M, N): rows up to the first of `ends_E` (int32, ascending, M at last) times the first matrix, and so on."""
    if _has_kernel(x_MK, weight_ENK):
        return F.grouped_mm(x_MK, weight_ENK.mT, offs=ends_E)
    y_MN = x_MK.new_empty(len(x_MK), weight_ENK.shape[1])
    for (start, stop), weight_NK in zip(_groups(ends_E), weight_ENK, strict=True):
        torch.mm(x_MK[start:stop], weight_NK.T, out=y_MN[start:stop])
    return y_MN


@torch.library.custom_op("gristmill::grouped_linear_backward", mutates_args=())
def _backward(grad_MN: Tensor, x_MK: Tensor, weight_ENK: Tensor, ends_E: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of rows and of matrices. Those of a group without rows are 0."""
    grad_MN = grad_MN.contiguous()
    if _has_kernel(x_MK, weight_ENK):
        return F.grouped_mm(grad_MN, weight_ENK, offs=ends_E), F.grouped_mm(grad_MN.mT, x_MK, offs=ends_E)
    of_x_MK, of_weight_ENK = torch.empty_like(x_MK), torch.empty_like(weight_ENK)
    for number, (start, stop) in enumerate(_groups(ends_E)):
        torch.mm(grad_MN[start:stop], weight_ENK[number], out=of_x_MK[start:stop])
        torch.mm(grad_MN[start:stop].T, x_MK[start:stop], out=of_weight_ENK[number])
    return of_x_MK, of_weight_ENK


@grouped_linear.register_fake
def _(x_MK: Tensor, weight_ENK: Tensor, ends_E: Tensor) -> Tensor:
    return x_MK.new_empty(x_MK.shape[0], weight_ENK.shape[1])


@_backward.register_fake
def _(grad_MN: Tensor, x_MK: Tensor, weight_ENK: Tensor, ends_E: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x_MK), torch.empty_like(weight_ENK)


def _differentiate(ctx: Any, grad_MN: Tensor) -> tuple[Tensor, Tensor, None]:
    return *_backward(grad_MN, *ctx.saved_tensors), None


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


grouped_linear.register_autograd(_differentiate, setup_context=_keep)


GROUPED_PRODUCT = torch.ops.gristmill.grouped_linear.default


@register_flop_formula(torch.ops.gristmill.grouped_linear)
def _flops(x_shape: Any, weight_shape: Any, *_: Any, **__: Any) -> int:
    """Each row is multiplied by one matrix."""
    return 2 * int(x_shape[0]) * int(weight_shape[1]) * int(weight_shape[2])


@register_flop_formula(torch.ops.gristmill.grouped_linear_backward)
def _backward_flops(grad_shape: Any, x_shape: Any, weight_shape: Any, *_: Any, **__: Any) -> int:
    return 2 * _flops(x_shape, weight_shape)
