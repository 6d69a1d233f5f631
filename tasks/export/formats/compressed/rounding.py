"""Rounds weights to integers times a scale: symmetric, with one scale for each group of a row.

Scales are bfloat16, whose eight bits are exact in every dtype that a runtime may compute in, so that float32 here and
float16 there have the same weights. Weights are rounded by the scale as it is stored.

Shapes: R rows of a weight (outputs), C columns (inputs), G groups of a row, D columns of a group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Times the scale at which a group's largest weight just fits. They begin above 1, as 0 has one code fewer above it
_RATIOS = tuple(1.08 - 0.03 * step for step in range(19))


@dataclass(frozen=True)
class Rounded:
    """A weight of `bits` bits: codes_RC of int8, scales_RG of bfloat16."""

    codes_RC: Tensor
    scales_RG: Tensor
    bits: int

    @property
    def group(self) -> int | None:
        """Columns that share a scale, or None for a whole row."""
        groups = self.scales_RG.shape[1]
        return None if groups == 1 else self.codes_RC.shape[1] // groups

    def dense(self) -> Tensor:
        """The dequantized weight: (R, C) in float32."""
        return dense(self.codes_RC, self.scales_RG)


def dense(codes_RC: Tensor, scales_RG: Tensor) -> Tensor:
    """Codes times their scales: (R, C) in float32."""
    rows, groups = scales_RG.shape
    return (codes_RC.float().view(rows, groups, -1) * scales_RG.float().unsqueeze(-1)).flatten(1)


def widened(scales_RG: Tensor, columns: int) -> Tensor:
    """The scale of each weight: (R, C) in float32."""
    return scales_RG.float().repeat_interleave(columns // scales_RG.shape[1], dim=1)


def widest_scales(weights_RC: Tensor, group: int, bits: int) -> Tensor:
    """Scales (R, G) that keep every weight within range or at most half a step beyond it."""
    return _stored(_peaks(weights_RC, group) / _reach(bits))


def round_to(weights_RC: Tensor, scales_RG: Tensor, bits: int) -> Rounded:
    """Round each weight to the nearest code."""
    rows, groups = scales_RG.shape
    steps = weights_RC.float().view(rows, groups, -1) / scales_RG.float().unsqueeze(-1)
    return Rounded(nearest(steps, bits).to(torch.int8).flatten(1), scales_RG, bits)


def nearest(steps: Tensor, bits: int) -> Tensor:
    """The nearest codes to weights in steps of the scale, in the input's dtype."""
    return steps.round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def searched_scales(weights_RC: Tensor, group: int, bits: int, gram_CC: Tensor | None = None) -> Tensor:
    """Scales (R, G) with the least squared error after rounding, searched over a grid for each group by itself.

    The error is that of the weights or, with the Gram matrix of a layer's inputs, that of the group's contribution to
    the output, as AWQ's code searches for clipping.
    """
    rows, columns = weights_RC.shape
    peaks_RG = _peaks(weights_RC, group) / _reach(bits)
    blocks_GDD = None if gram_CC is None else _diagonal_blocks(gram_CC, group)
    best_RG = _stored(peaks_RG)
    least_RG = torch.full_like(peaks_RG, torch.inf)
    for ratio in _RATIOS:
        scales_RG = _stored(peaks_RG * ratio)
        off_RGD = (round_to(weights_RC, scales_RG, bits).dense() - weights_RC).view(rows, columns // group, group)
        if blocks_GDD is None:
            error_RG = off_RGD.square().sum(-1)
        else:
            off_GRD = off_RGD.transpose(0, 1)
            error_RG = (torch.bmm(off_GRD, blocks_GDD) * off_GRD).sum(-1).T
        better_RG = error_RG < least_RG
        best_RG = torch.where(better_RG, scales_RG, best_RG)
        least_RG = torch.where(better_RG, error_RG, least_RG)
    return best_RG


def _peaks(weights_RC: Tensor, group: int) -> Tensor:
    return weights_RC.float().view(len(weights_RC), -1, group).abs().amax(-1)


def _reach(bits: int) -> float:
    """Half the range of the codes, in steps: 7.5 at 4 bits."""
    return (2**bits - 1) / 2


def _stored(scales_RG: Tensor) -> Tensor:
    return torch.where(scales_RG > 0, scales_RG, 1.0).to(torch.bfloat16)


def _diagonal_blocks(gram_CC: Tensor, group: int) -> Tensor:
    parts = range(0, len(gram_CC), group)
    return torch.stack([gram_CC[start : start + group, start : start + group] for start in parts])
