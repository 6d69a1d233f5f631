"""The first model of a cascade: a linear model that settles the pieces that are clear to it.

A settled piece gets the mean of the classifier's scores for the pieces settled on the same side of a held-out sample.
Its score is thus on the classifier's scale, and right on average.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Bool, Float64
from tasks.filter.fasttext_model.scorer import load_scorer

FIRST, CUTS = "first", "cuts.json"


class Side(NamedTuple):
    """The log-odds at which a side begins, and the score of pieces settled there."""

    odds: float
    score: float


class FirstModel:
    """The model in a folder that `cascade.py` wrote."""

    def __init__(self, folder: Path) -> None:
        self.scorer = load_scorer(folder)
        cuts = json.loads((folder / CUTS).read_text())
        self.low, self.high = (Side(*cuts[side]) if cuts[side] else None for side in ("low", "high"))

    def settle(self, pieces: Sequence[str]) -> tuple[Float64, Bool]:
        """The score of each clear piece, and a mask of these pieces."""
        odds, words = self.scorer.log_odds(pa.array(pieces, pa.string()))
        values, settled = np.zeros(len(pieces)), np.zeros(len(pieces), np.bool_)
        for side, clear in ((self.low, np.less_equal), (self.high, np.greater_equal)):
            if side is not None:
                rows = clear(odds, side.odds) & (words > 0)
                values[rows], settled[rows] = side.score, True
        return values, settled
