"""A format's matrices beside the checkpoint's: how far the worst row is, and of which tensor.

Behaviour on some thousand tokens tells little of one weight; a row that was written wrong stands out here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.pretrained import StoredWeights
from storage.errors import ParityError
from storage.shards.arrays import Float32

SMALL = 0.01  # of the median row's norm
TINIEST = 1e-30  # of a matrix of zeros


@dataclass(frozen=True)
class WeightError:
    """The largest relative error of a row, ‖written − checkpoint‖ / ‖checkpoint‖, and where it is."""

    tensors: int
    largest: float
    tensor: str

    @property
    def where(self) -> str:
        """A clause for a message."""
        return f"most in {self.tensor}, by {self.largest:.2g} of a row" if self.tensor else "in no tensor that was read"


class WeightErrors:
    """The errors of matrices that pass by, each beside the checkpoint's in `model`."""

    def __init__(self, model: Path) -> None:
        self._checkpoint = StoredWeights(model)
        self._found = dict[str, float]()

    def watch(self, weights: Iterable[tuple[str, Float32]]) -> Iterator[tuple[str, Float32]]:
        """The same matrices. Raises ParityError for one of another shape."""
        for name, values in weights:
            if name in self._checkpoint:
                expected = self._checkpoint[name]
                if values.shape != expected.shape:
                    raise ParityError(
                        f"{name} was written with shape {values.shape}, not {expected.shape}.", "Report it."
                    )
                self._found[name] = _worst_row(values, expected)
            yield name, values

    def largest(self) -> WeightError:
        """Of all that passed by; not a number counts as the largest."""
        found = self._found
        if not found:
            return WeightError(0, 0.0, "")
        tensor = max(found, key=lambda name: math.inf if math.isnan(found[name]) else found[name])
        return WeightError(len(found), found[tensor], tensor)


def _worst_row(values: Float32, expected: Float32) -> float:
    """Rows that are next to nothing beside the others, as of tokens that no text has, are measured by these."""
    rows, wanted = np.atleast_2d(values), np.atleast_2d(expected)
    apart, size = np.linalg.norm(rows - wanted, axis=-1), np.linalg.norm(wanted, axis=-1)
    least = max(SMALL * float(np.median(size)), TINIEST)
    return float((apart / np.maximum(size, least)).max())
