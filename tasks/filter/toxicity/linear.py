"""The model of `alt-profanity-check` as plain arrays: tf-idf of words, five linear classifiers, and their mean.

The package pickles the model and calls scikit-learn, word by word in Python. Its weights are exported once. Scoring
then reads only arrays, and is ten times as fast. Words are folded as everywhere in the filter (NFC and case folding),
which equals the package's `lower()` except for a few letters such as ß.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Float64, Int64
from tasks.filter.fasttext_model.classifier import word_table
from tasks.filter.fasttext_model.tokens import fold, term_kinds
from tasks.filter.toxicity import kernels
from tasks.stage.output import Output

PACKAGE = "alt-profanity-check"
WORDS, WEIGHTS, FOLDS = "words.txt", "weights.npy", "folds.json"


def export_linear(out: Output) -> None:
    """Write the package's words, idf times coefficients for each fold, and each fold's intercept and sigmoid."""
    from profanity_check.profanity_check import model, vectorizer

    folds = [(fold.estimator, fold.calibrators[0]) for fold in model.calibrated_classifiers_]
    words = sorted(vectorizer.vocabulary_)
    order = [vectorizer.vocabulary_[word] for word in words]
    idf = vectorizer.idf_[order]
    weights = np.stack([idf, *(idf * estimator.coef_[0][order] for estimator, _ in folds)], axis=1)
    (out.path / WORDS).write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    np.save(out.path / WEIGHTS, weights.astype(np.float64), allow_pickle=False)
    numbers = [[float(estimator.intercept_[0]), float(curve.a_), float(curve.b_)] for estimator, curve in folds]
    (out.path / FOLDS).write_text(json.dumps(numbers) + "\n")


class Linear:
    """The exported model in a folder."""

    def __init__(self, folder: Path) -> None:
        self.table = word_table((folder / WORDS).read_bytes().split(b"\n")[:-1])
        self.weights = np.load(folder / WEIGHTS, allow_pickle=False)
        self.intercepts, self.slopes, self.offsets = np.array(json.loads((folder / FOLDS).read_text())).T

    def score(self, texts: pa.Array) -> tuple[Float64, Int64]:
        """For each text the probability that it is profane, and its number of words."""
        from scipy.special import expit

        scores, words = np.zeros(len(texts)), np.zeros(len(texts), np.int64)
        for part in fold(texts):
            size = len(part.rows)
            sums, norms, counts = np.zeros((size, len(self.slopes))), np.empty(size), np.empty(size, np.int64)
            places = (part.data, part.begins, part.ends)
            kernels.sum_terms(term_kinds(), *self.table, self.weights, *places, sums, norms, counts)
            decisions = sums / np.where(norms > 0, norms, 1)[:, None] + self.intercepts
            scores[part.rows] = expit(-(self.slopes * decisions + self.offsets)).mean(1)
            words[part.rows] = counts
        return scores, words
