"""Toxicity scores: the classifier scores pieces of a text, and a document gets their mean and maximum.

The score of a whole book would say little, since the words that matter are diluted. The classifier therefore sees
pieces of a few sentences, as long as the comments on which such classifiers are trained. Their scores are probabilities
at a low base rate, so that the mean over a document, weighted by length, is its expected toxic share. One doubtful
piece in a long text adds next to nothing, and line ends make no difference.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Float64, Int64
from tasks.filter.classifier.scorer import ClassifierScorer, is_classifier, open_classifier
from tasks.filter.classifier.workers import CPU, Placement
from tasks.filter.fasttext_model.scorer import Scorer, load_scorer
from tasks.filter.fasttext_model.tokens import word_kinds
from tasks.filter.toxicity import kernels
from tasks.filter.toxicity.config import ToxicityConfig
from tasks.filter.toxicity.package import WEIGHTS_FILE, PackageScorer
from tasks.text.scan import utf8

SCHEMA = pa.schema([("toxicity_score", pa.float64()), ("toxicity_piece", pa.float64())])


def measure_toxicity(config: ToxicityConfig, model: Path, texts: pa.Array, where: Placement = CPU) -> pa.RecordBatch:
    """The scores of each text under the model in this folder. For the columns see `toxicity_signals`."""
    mean, worst, total = score_documents(load_model(model, where), texts, config.piece_bytes)
    return pa.record_batch([pa.array(mean, mask=total == 0), pa.array(worst, mask=total == 0)], SCHEMA)


def score_documents(
    scorer: Scorer | PackageScorer | ClassifierScorer, texts: pa.Array, piece_bytes: int
) -> tuple[Float64, Float64, Int64]:
    """The mean score of each text's pieces, weighted by their bytes, the highest, and the bytes of those with words."""
    parts, sizes, firsts = pieces(texts, piece_bytes)
    scores, words = scorer.score(parts)
    weights = np.where(words > 0, sizes, 0)
    total = np.add.reduceat(weights, firsts)
    mean = np.add.reduceat(scores * weights, firsts) / np.maximum(1, total)
    return mean, np.maximum.reduceat(np.where(words > 0, scores, 0.0), firsts), total


def pieces(texts: pa.Array, most: int) -> tuple[pa.Array, Int64, Int64]:
    """Cut D texts into pieces without copying. Returns all pieces as one array of strings, their bytes (a run of white
    space counts as one), and the number of each text's first piece (D)."""
    data, offsets = utf8(texts)
    limit = 2 * (int(offsets[-1] - offsets[0]) // most + len(texts))
    begins, sizes = np.empty(limit + 1, np.int64), np.empty(limit, np.int64)
    firsts = np.empty(len(texts), np.int64)
    count = kernels.cut_pieces(data, offsets, word_kinds(), most, begins, sizes, firsts)
    begins[count] = offsets[-1]
    bounds = pa.py_buffer(begins[: count + 1].astype(np.int32))
    return pa.StringArray.from_buffers(count, bounds, texts.buffers()[2]), sizes[:count], firsts


def load_model(folder: Path, where: Placement = CPU) -> Scorer | PackageScorer | ClassifierScorer:
    """The model of an artifact, loaded once per process, a transformers classifier on its device."""
    return open_classifier(folder, where.here()) if is_classifier(folder) else _load_linear(folder)


@functools.cache
def _load_linear(folder: Path) -> Scorer | PackageScorer:
    return PackageScorer(folder) if (folder / WEIGHTS_FILE).exists() else load_scorer(folder)
