"""Compares a format's weights with the checkpoint's: the errors of the worst row and scale, and their tensors.

Behaviour on a few thousand tokens reveals little about one weight, but a wrongly written row shows here. No format
rounds vectors, such as those of norms, so each of their numbers is compared. Rounding to nearest, or with the least
error, leaves the projection of a matrix on the original at 1, or short of it by the square of the error: any further
deviation is a scale that is wrong throughout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from models.pretrained import StoredWeights
from storage.errors import ParityError
from storage.shards.arrays import Float32

SMALL = 0.01  # of the median row's norm
TINIEST = 1e-30  # norm assumed for a matrix of zeros


class Worst(NamedTuple):
    """The largest of some errors, and its tensor."""

    error: float = 0.0
    tensor: str = ""


@dataclass(frozen=True)
class WeightError:
    """The largest relative errors: of a matrix's row, ‖written − checkpoint‖ / ‖checkpoint‖, of a whole matrix's scale
    beyond what rounding explains, and of a vector's number."""

    tensors: int
    row: Worst
    scale: Worst
    number: Worst

    @property
    def where(self) -> str:
        """A clause for a message: where the weights differ."""
        return (
            f"most in {self.row.tensor}, by {self.row.error:.2g} of a row" if self.tensors else "in none that was read"
        )


class WeightErrors:
    """Measures the errors of weights that pass through it, tensor by tensor, against the checkpoint in `model`."""

    def __init__(self, model: Path) -> None:
        self._checkpoint = StoredWeights(model)
        self._rows, self._scales, self._numbers = dict[str, float](), dict[str, float](), dict[str, float]()

    def watch(self, weights: Iterable[tuple[str, Float32]]) -> Iterator[tuple[str, Float32]]:
        """Yields the same weights. Raises ParityError for a tensor of another shape."""
        for name, values in weights:
            if name in self._checkpoint:
                expected = self._checkpoint[name]
                if values.shape != expected.shape:
                    raise ParityError(
                        f"{name} was written with shape {values.shape}, not {expected.shape}.", "Report it."
                    )
                if values.ndim == 1:
                    self._numbers[name] = _worst_row(values[:, None], expected[:, None])
                else:
                    self._rows[name] = _worst_row(values, expected)
                    self._scales[name] = _scale_error(values, expected)
            yield name, values

    def largest(self) -> WeightError:
        """The largest errors of the weights so far."""
        worst = map(_worst, (self._rows, self._scales, self._numbers))
        return WeightError(len(self._rows) + len(self._numbers), *worst)


def _worst(errors: Mapping[str, float]) -> Worst:
    """The largest error and its tensor. NaN counts as the largest."""
    tensor = max(errors, key=lambda name: math.inf if math.isnan(errors[name]) else errors[name], default="")
    return Worst(errors[tensor], tensor) if tensor else Worst()


def _worst_row(rows: Float32, expected: Float32) -> float:
    """The largest relative error of a row. Tiny rows, as of tokens that no text has, are measured by the median row."""
    apart, size = np.linalg.norm(rows - expected, axis=-1), np.linalg.norm(expected, axis=-1)
    least = max(SMALL * float(np.median(size)), TINIEST)
    return float((apart / np.maximum(size, least)).max())


def _scale_error(values: Float32, expected: Float32) -> float:
    size = max(float(np.vdot(expected, expected)), TINIEST)
    rounding = float(np.vdot(values - expected, values - expected)) / size
    return abs(float(np.vdot(values - expected, expected)) / size) - rounding
