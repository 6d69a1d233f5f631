"""SmoothQuant (Xiao et al. 2023): columns of large activations are made smaller, and their weights larger, before both
are rounded.

A token's activations share one scale, so one large column costs all others their precision. A column's factor is
max|x|^α / max|w|^(1-α) (equation 4): its weights are multiplied by it, what feeds the layer is divided by it, so that
nothing changes but the rounding.

Shapes: R rows of a weight (what goes out), C columns (what goes in).
"""

from __future__ import annotations

from torch import Tensor

_ALPHA = 0.5  # how much of the difficulty goes from activations to weights; the paper's, for most models
_LEAST = 1e-4  # of the largest: a column that the text hardly uses may be large in another text


def smoothing_factors(weights_RC: Tensor, peaks_C: Tensor) -> Tensor:
    """The factor (C) of each column of the layers whose rows are `weights_RC`, and whose inputs have these largest
    magnitudes by column (C); about 1 in the middle."""
    factors_C = _raised(peaks_C) ** _ALPHA / _raised(weights_RC.abs().amax(0)) ** (1 - _ALPHA)
    return factors_C / (factors_C.max() * factors_C.min()).sqrt()


def _raised(peaks_C: Tensor) -> Tensor:
    return peaks_C.clamp(min=max(float(peaks_C.max()) * _LEAST, 1e-12))
