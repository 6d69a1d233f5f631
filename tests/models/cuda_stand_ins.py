"""Stand-ins for CUDA kernels without the extra memory that torch needs on a CPU, to count what a GPU keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.kernels import cross_entropy, row_kernels
from models.presets import LOSS_CHUNK_CUDA
from models.transformer import HeadNorm, ZeroCentredNorm


class FusedRMSNorm(torch.autograd.Function):
    """RMSNorm that saves what CUDA's kernel saves: its input, and a float32 number a token."""

    @staticmethod
    def forward(ctx: Any, x_BTC: Tensor, weight_C: Tensor) -> Tensor:
        rstd_BT1 = x_BTC.float().pow(2).mean(-1, keepdim=True).add(1e-5).rsqrt()
        ctx.save_for_backward(x_BTC, rstd_BT1)
        return (x_BTC * rstd_BT1).to(x_BTC.dtype) * weight_C

    @staticmethod
    def backward(ctx: Any, dy_BTC: Tensor) -> tuple[Tensor, None]:
        return dy_BTC.clone(), None


def fused_forward(norm: nn.RMSNorm | HeadNorm, x_BTC: Tensor) -> Tensor:
    x = x_BTC if len(norm.weight) == x_BTC.shape[-1] else x_BTC.flatten(-2)  # heads, normalised together
    y: Tensor = FusedRMSNorm.apply(x, norm.weight)  # type: ignore[no-untyped-call]  # apply has no types
    return y.view(x_BTC.shape)


def statistics(logits_NV: Tensor, word_N1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute row by row, with no more memory than CUDA's kernels."""
    rows = [row_kernels.statistics(*row) for row in zip(logits_NV.split(1), word_N1.split(1), strict=True)]
    highest, z, logit = (torch.cat(column) for column in zip(*rows, strict=True))
    return highest, z, logit


def exponentials_(logits_NV: Tensor, highest_N1: Tensor, scale_N1: Tensor) -> None:
    for row in zip(logits_NV.split(1), highest_N1.split(1), scale_N1.split(1), strict=True):
        row_kernels.exponentials_(*row)


def add_product(sum_VC: Tensor, left_VN: Tensor, right_NC: Tensor) -> None:
    for sum_1C, left_1N in zip(sum_VC.split(1), left_VN.split(1), strict=True):
        sum_1C += left_1N @ right_NC


def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and the loss in 16 bits need the memory that they need on a GPU."""
    for kind in (nn.RMSNorm, ZeroCentredNorm, HeadNorm):
        monkeypatch.setattr(kind, "forward", fused_forward)
    fused = row_kernels.RowKernels(statistics, exponentials_)
    monkeypatch.setattr(cross_entropy, "row_kernels", lambda device: fused)
    monkeypatch.setattr(cross_entropy, "add_product", add_product)
    monkeypatch.setattr(cross_entropy, "LOSS_CHUNK", LOSS_CHUNK_CUDA)
