"""SmoothQuant (Xiao et al. 2023): shrinks columns of large activations, and enlarges their weights, before both are
rounded.

A token's activations share one scale, so one large column costs all others their precision. A column's factor is
max|x|^α / max|w|^(1-α) (equation 4): its weights are multiplied by it and the layer's feeder is divided by it, so that
only the rounding changes.

Shapes: R rows of a weight (outputs), C columns (inputs).
"""

from __future__ import annotations

from torch import Tensor

_ALPHA = 0.5  # share of the difficulty moved from activations to weights: the paper's value for most models
_LEAST = 1e-4  # minimum peak, relative to the largest: a column that this text hardly uses may be large in another


def smoothing_factors(weights_RC: Tensor, peaks_C: Tensor) -> Tensor:
    """The factors (C) of the columns of layers whose rows are `weights_RC` and whose inputs have these peaks (C). The
    geometric mean of the smallest and the largest factor is 1."""
    factors_C = _raised(peaks_C) ** _ALPHA / _raised(weights_RC.abs().amax(0)) ** (1 - _ALPHA)
    return factors_C / (factors_C.max() * factors_C.min()).sqrt()


def _raised(peaks_C: Tensor) -> Tensor:
    return peaks_C.clamp(min=max(float(peaks_C.max()) * _LEAST, 1e-12))
