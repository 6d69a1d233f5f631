"""Scoring with a trained two-class model: calibrated probabilities of Arrow strings."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Float64, Int64
from tasks.filter.fasttext_model.calibration import Sigmoid
from tasks.filter.fasttext_model.classifier import Classifier, difference
from tasks.filter.fasttext_model.file import read_model
from tasks.filter.fasttext_model.tokens import fold, word_kinds

MODEL, CALIBRATION = "model.bin", "calibration.json"
POSITIVE, NEGATIVE = "positive", "negative"


class Scorer:
    """A two-class model. Raises SourceError for a file that isn't one."""

    def __init__(self, model: Path, sigmoid: Sigmoid) -> None:
        file = read_model(model)
        self.classifier = Classifier(file, difference(file, POSITIVE), word_kinds())
        self.sigmoid = sigmoid

    def log_odds(self, texts: pa.Array) -> tuple[Float64, Int64]:
        """The log-odds of `positive` and the number of words of each text. Without words the odds are meaningless."""
        odds, words = np.zeros(len(texts)), np.zeros(len(texts), np.int64)
        for part in fold(texts):
            pieces = self.classifier.sum(part.data, part.begins, part.ends)
            odds[part.rows] = pieces.sums[:, 0] / np.maximum(1, pieces.counts)
            words[part.rows] = pieces.words
        return odds, words

    def score(self, texts: pa.Array) -> tuple[Float64, Int64]:
        """The probability of `positive` and the number of words of each text."""
        odds, words = self.log_odds(texts)
        return self.sigmoid(odds), words


@functools.cache
def load_scorer(folder: Path) -> Scorer:
    """The model of an artifact, loaded once per process."""
    return Scorer(folder / MODEL, Sigmoid(**json.loads((folder / CALIBRATION).read_text())))
