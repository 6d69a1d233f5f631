"""Toxicity scores: the classifier scores paragraphs; a document gets their mean and maximum.

The score of a whole book would say little, since the words that matter are diluted. So the classifier sees paragraphs,
and a document has two signals.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Int64
from tasks.filter.fasttext_model.scorer import Scorer, load_scorer
from tasks.filter.fasttext_model.tokens import word_kinds
from tasks.filter.toxicity import kernels
from tasks.filter.toxicity.config import ToxicityConfig
from tasks.filter.toxicity.package import WEIGHTS, PackageScorer
from tasks.text.scan import utf8

SCHEMA = pa.schema([("toxicity_score", pa.float64()), ("toxicity_paragraph", pa.float64())])


def measure_toxicity(config: ToxicityConfig, model: Path, texts: pa.Array) -> pa.RecordBatch:
    """The scores of each text under the model in this folder; see `stage.py` for the columns."""
    parts, characters, firsts = paragraphs(texts, config.paragraph_bytes)
    scores, words = load_model(model).score(parts)
    weights = np.where(words > 0, characters, 0)
    total = np.add.reduceat(weights, firsts)
    mean = np.add.reduceat(scores * weights, firsts) / np.maximum(1, total)
    worst = np.maximum.reduceat(np.where(words > 0, scores, 0.0), firsts)
    return pa.record_batch([pa.array(mean, mask=total == 0), pa.array(worst, mask=total == 0)], SCHEMA)


def paragraphs(texts: pa.Array, most: int) -> tuple[pa.Array, Int64, Int64]:
    """The paragraphs of D texts, without copying: all as one array of strings, their lengths in characters, and the
    number of each text's first paragraph (D)."""
    data, offsets = utf8(texts)
    limit = int(offsets[-1] - offsets[0]) // min(3, most) + len(texts)
    begins, characters = np.empty(limit + 1, np.int64), np.empty(limit, np.int64)
    firsts = np.empty(len(texts), np.int64)
    count = kernels.cut_paragraphs(data, offsets, word_kinds(), most, begins, characters, firsts)
    begins[count] = offsets[-1]
    bounds = pa.py_buffer(begins[: count + 1].astype(np.int32))
    return pa.StringArray.from_buffers(count, bounds, texts.buffers()[2]), characters[:count], firsts


@functools.cache
def load_model(folder: Path) -> Scorer | PackageScorer:
    """The model of an artifact, loaded once per process."""
    return PackageScorer(folder) if (folder / WEIGHTS).exists() else load_scorer(folder)
