"""A cascade of two models from packages: the linear one settles most pieces, the LSTM the rest.

The linear model by itself (see `linear.py`) calls every oath and many a donkey toxic, but what it finds harmless is
harmless: it passes on 98.9 % of the labelled posts that the LSTM calls toxic. It is a hundred times as fast, and passes
on 1 to 3 % of expository text and 15 % of fiction.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.shards.arrays import Float64, Int64
from tasks.filter.fasttext_model.calibration import Sigmoid
from tasks.filter.toxicity.config import PackageModelConfig
from tasks.filter.toxicity.linear import Linear, export_linear
from tasks.filter.toxicity.lstm import TOXIC_SHARE, WEIGHTS_FILE, Lstm, export_lstm
from tasks.stage.output import Output

BASE_RATE = "base_rate.json"
PASSED_ON = 0.2  # minimum linear score of pieces that the LSTM decides on

__all__ = ["WEIGHTS_FILE", "PackageScorer", "export_package"]


def export_package(config: PackageModelConfig, out: Output) -> None:
    """Write both models and the base rate. Raises SourceError for a package that is missing or has other contents."""
    out.progress(0, 1, "models", "export")
    export_linear(out)
    export_lstm(out)
    (out.path / BASE_RATE).write_text(json.dumps(config.base_rate) + "\n")


class PackageScorer:
    """The exported models in a folder."""

    def __init__(self, folder: Path) -> None:
        self.linear, self.lstm = Linear(folder), Lstm(folder)
        self.base_rate = json.loads((folder / BASE_RATE).read_text())
        self.sigmoid = Sigmoid(1.0, 0.0).at_rate(TOXIC_SHARE, self.base_rate)

    def score(self, texts: pa.Array) -> tuple[Float64, Int64]:
        """For each text the probability that it is toxic at the base rate, and its number of words. A text settled by
        the linear model gets its score times that rate, which keeps the order."""
        gate, words = self.linear.score(texts)
        scores = gate * self.base_rate
        rows = np.flatnonzero(gate >= PASSED_ON)
        scores[rows] = self.sigmoid(self.lstm.log_odds(pc.take(texts, pa.array(rows))))
        return scores, words
