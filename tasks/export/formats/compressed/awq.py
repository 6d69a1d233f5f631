"""AWQ (Lin et al. 2024): columns that carry large inputs are scaled up before rounding, so that they lose less.

A column's factor is the mean magnitude of its input to the power α (equation 5), where α is searched for the smallest
error of the output after rounding. The layer's feeder is divided by the factor, so that only the rounding changes. Then
the clipping of each group is searched. Errors of outputs are computed exactly from the Gram matrix of the inputs,
‖E X‖² = tr(E X Xᵀ Eᵀ), at a cost that doesn't depend on the amount of text.

Shapes: R rows of a weight (outputs), C columns (inputs).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tasks.export.formats.compressed.calibration import Inputs
from tasks.export.formats.compressed.rounding import round_to, widest_scales

_STEPS = 20  # values of α from 0, which changes nothing, to below 1
_LEAST = 1e-4  # magnitude below which a column counts as empty


def column_factors(weights_RC: Tensor, inputs: Inputs, group: int, bits: int = 4) -> Tensor:
    """The factors (C) of the columns of layers whose rows are `weights_RC`, with the least error of their outputs."""
    magnitude_C = (inputs.magnitude_C / inputs.tokens).clamp(min=_LEAST)
    best_C, least = torch.ones_like(magnitude_C), torch.inf
    for step in range(_STEPS):
        factors_C = magnitude_C ** (step / _STEPS)
        factors_C = factors_C / (factors_C.max() * factors_C.min()).sqrt()
        scaled_RC = weights_RC * factors_C
        rounded_RC = round_to(scaled_RC, widest_scales(scaled_RC, group, bits), bits).dense() / factors_C
        error = output_error(rounded_RC - weights_RC, inputs.gram_CC)
        if error < least:
            best_C, least = factors_C, error
    return best_C


def output_error(off_RC: Tensor, gram_CC: Tensor) -> float:
    """The squared error of a layer's output, summed over tokens, if its weights are off by `off_RC`."""
    return float(((off_RC @ gram_CC) * off_RC).sum())


def scaled_inputs(inputs: Inputs, factors_C: Tensor) -> Inputs:
    """The inputs after the layer's feeder was divided by the factors."""
    gram_CC = inputs.gram_CC / torch.outer(factors_C, factors_C)
    return Inputs(gram_CC, inputs.magnitude_C / factors_C, inputs.peak_C / factors_C, inputs.tokens)
