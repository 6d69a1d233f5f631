"""A format's weights beside the checkpoint's: how far the worst row is, how far its scale, and of which tensor.

Behaviour on some thousand tokens tells little of one weight; a row that was written wrong stands out here. Vectors,
such as those of norms, are rounded by no format, and each of their numbers counts for itself. Rounding to nearest, or
with the least error, leaves the projection of a matrix on what it was at 1, or short of it by the square of the error:
what is beyond is a scale that is wrong throughout.
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
TINIEST = 1e-30  # of a matrix of zeros


class Worst(NamedTuple):
    """The largest of some errors, and the tensor that has it."""

    error: float = 0.0
    tensor: str = ""


@dataclass(frozen=True)
class WeightError:
    """Relative errors: of a row of a matrix, ‖written − checkpoint‖ / ‖checkpoint‖; of the scale of a whole matrix,
    beyond what rounding explains; of a number of a vector."""

    tensors: int
    row: Worst
    scale: Worst
    number: Worst

    @property
    def where(self) -> str:
        """A clause for a message."""
        return (
            f"most in {self.row.tensor}, by {self.row.error:.2g} of a row" if self.tensors else "in none that was read"
        )


class WeightErrors:
    """The errors of weights that pass by, each tensor beside the checkpoint's in `model`."""

    def __init__(self, model: Path) -> None:
        self._checkpoint = StoredWeights(model)
        self._rows, self._scales, self._numbers = dict[str, float](), dict[str, float](), dict[str, float]()

    def watch(self, weights: Iterable[tuple[str, Float32]]) -> Iterator[tuple[str, Float32]]:
        """The same weights. Raises ParityError for a tensor of another shape."""
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
        """Of all that passed by."""
        worst = map(_worst, (self._rows, self._scales, self._numbers))
        return WeightError(len(self._rows) + len(self._numbers), *worst)


def _worst(errors: Mapping[str, float]) -> Worst:
    """Not a number counts as the largest."""
    tensor = max(errors, key=lambda name: math.inf if math.isnan(errors[name]) else errors[name], default="")
    return Worst(errors[tensor], tensor) if tensor else Worst()


def _worst_row(rows: Float32, wanted: Float32) -> float:
    """Rows that are next to nothing beside the others, as of tokens that no text has, are measured by these."""
    apart, size = np.linalg.norm(rows - wanted, axis=-1), np.linalg.norm(wanted, axis=-1)
    least = max(SMALL * float(np.median(size)), TINIEST)
    return float((apart / np.maximum(size, least)).max())


def _scale_error(values: Float32, wanted: Float32) -> float:
    size = max(float(np.vdot(wanted, wanted)), TINIEST)
    rounding = float(np.vdot(values - wanted, values - wanted)) / size
    return abs(float(np.vdot(values - wanted, wanted)) / size) - rounding
