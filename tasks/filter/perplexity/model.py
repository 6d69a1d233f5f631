"""N-gram models: their files, and the probability of texts under them.

Each of two models is trained on one half of the texts, and scores the texts of the other half. With a single model,
perplexity would mainly reveal the documents that it was trained on, which in a small corpus are many.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from storage.shards.arrays import Float32, Float64, Int64, UInt64
from tasks.filter.perplexity import kernels
from tasks.filter.perplexity.sentences import scan_sentences, split_lines
from tasks.text.scan import utf8

FIGURES = "model.json"
HALVES = 2


class NgramModel(NamedTuple):
    """`table` has slots × 2 numbers (see kernels.py). Those of order n are `table[starts[n - 1]:starts[n]]`."""

    table: UInt64
    starts: Int64

    @property
    def logs(self) -> Float32:
        """The table as floats, slots × 4: the last two of a slot are log10 of probability and backoff."""
        return self.table.view(np.float32)

    def score(self, texts: pa.Array) -> tuple[Float64, Int64]:
        """For each text log10 of its probability and its number of tokens, which are words and an end per sentence.
        Both are 0 for a text without words."""
        lines, firsts = split_lines(texts)
        scores, tokens = np.zeros(len(lines)), np.zeros(len(lines), np.int64)
        logs = self.logs
        for scanned, counted in scan_sentences(lines):
            part = np.empty(len(counted))
            kernels.score(scanned.words, scanned.word_ends, counted, self.table, logs, self.starts, part)
            scores[scanned.rows], tokens[scanned.rows] = part, counted
        documents = np.repeat(np.arange(len(texts)), np.diff(firsts))
        summed = np.bincount(documents, scores, len(texts))
        return summed.astype(np.float64, copy=False), np.bincount(documents, tokens, len(texts)).astype(np.int64)


def halves(texts: pa.Array) -> Int64:
    """The half, 0 or 1, of each text, by its hash."""
    data, offsets = utf8(texts)
    view = data.data
    bounds = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    return np.array([xxhash.xxh3_64_intdigest(view[start:end]) % HALVES for start, end in bounds], np.int64)


def score_unseen(models: Sequence[NgramModel], texts: pa.Array) -> tuple[Float64, Int64]:
    """The `score` of each text under the model trained on the other half."""
    scores, tokens = np.zeros(len(texts)), np.zeros(len(texts), np.int64)
    half = halves(texts)
    for number, model in enumerate(models):
        rows = np.flatnonzero(half != number)
        scores[rows], tokens[rows] = model.score(texts.take(pa.array(rows)))
    return scores, tokens


def perplexity(scores: Float64, tokens: Int64) -> Float64:
    """Perplexity per token, 10^(−log10 p / tokens), or NaN without tokens."""
    return np.power(10.0, -scores / np.where(tokens, tokens, np.nan))


def save(models: Sequence[NgramModel], figures: dict[str, Any], folder: Path) -> None:
    """Write models as files that can be mapped into memory, and their figures."""
    for number, model in enumerate(models):
        np.save(_file(folder, number), model.table)
    figures = {"starts": [model.starts.tolist() for model in models], **figures}
    (folder / FIGURES).write_text(json.dumps(figures, indent=2) + "\n")


def load(folder: Path) -> tuple[list[NgramModel], dict[str, Any]]:
    """Load saved models and their figures. The models are mapped into memory, and so shared by all processes."""
    figures = json.loads((folder / FIGURES).read_text())
    tables = [np.asarray(np.load(_file(folder, number), mmap_mode="r")) for number in range(HALVES)]
    starts = [np.array(bounds, np.int64) for bounds in figures["starts"]]
    return [NgramModel(*pair) for pair in zip(tables, starts, strict=True)], figures


def _file(folder: Path, number: int) -> Path:
    return folder / f"ngrams-{number}.npy"
