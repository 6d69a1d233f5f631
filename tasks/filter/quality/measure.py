"""The quality score of texts, by the trained classifier on the whole of each."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tasks.filter.fasttext_model.scorer import load_scorer

SCHEMA = pa.schema([("quality_score", pa.float64())])


def measure_quality(model: Path, texts: pa.Array) -> pa.RecordBatch:
    """The score of each text under the model of this folder; null without a word."""
    scores, words = load_scorer(model).score(texts)
    return pa.record_batch([pa.array(scores, mask=words == 0)], SCHEMA)
