"""GPTQ (Frantar et al. 2022): rounds weights column by column, each error compensated by the remaining columns.

It minimises the error of the layer's output, ‖(W − Ŵ) X‖², over the windows of text that it is calibrated on. Columns
are taken in order of their inputs' magnitude, largest first (the authors' `act-order`), while groups stay those of the
original order, with scales set beforehand ("static groups"), so that the layout needs no index.

Shapes: R rows of a weight (outputs), C columns (inputs), G groups of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tasks.export.formats.compressed.rounding import Rounded, nearest, searched_scales

DAMPING = 0.01  # of the mean of the diagonal (section 3.3, step 3)
_LAZY = 128  # columns after which the remaining ones are updated together (step 2)


def gptq(weights_RC: Tensor, gram_CC: Tensor, group: int, bits: int = 4) -> Rounded:
    """Round the weights (R, C) of a layer whose inputs have this Gram matrix (C, C), in groups of `group` columns."""
    scales_RG = searched_scales(weights_RC, group, bits, gram_CC)
    order_C = torch.argsort(gram_CC.diagonal(), descending=True, stable=True)
    upper_CC = inverse_factor(gram_CC[order_C][:, order_C])
    scales_RC = scales_RG.float().repeat_interleave(group, dim=1)[:, order_C]
    left_RC = weights_RC.float()[:, order_C]
    codes_RC = torch.empty_like(left_RC)
    columns = left_RC.shape[1]
    for start in range(0, columns, _LAZY):
        stop = min(start + _LAZY, columns)
        errors_R_ = torch.empty_like(left_RC[:, start:stop])
        for column in range(start, stop):
            weight_R, scale_R = left_RC[:, column], scales_RC[:, column]
            codes_RC[:, column] = nearest(weight_R / scale_R, bits)
            error_R = (weight_R - codes_RC[:, column] * scale_R) / upper_CC[column, column]
            left_RC[:, column + 1 : stop] -= torch.outer(error_R, upper_CC[column, column + 1 : stop])
            errors_R_[:, column - start] = error_R
        left_RC[:, stop:] -= errors_R_ @ upper_CC[start:stop, stop:]
    return Rounded(codes_RC[:, torch.argsort(order_C)].to(torch.int8), scales_RG, bits)


def inverse_factor(gram_CC: Tensor) -> Tensor:
    """The upper triangular U, such that UᵀU is the inverse of the damped matrix, in float32, computed in float64. A
    column without inputs gets a diagonal of 1."""
    damped_CC = gram_CC.double()
    diagonal_C = damped_CC.diagonal()
    diagonal_C += DAMPING * diagonal_C.mean()
    diagonal_C[diagonal_C == 0] = 1
    inverse_CC = torch.cholesky_inverse(torch.linalg.cholesky(damped_CC))
    return torch.linalg.cholesky(inverse_CC, upper=True).float()
