"""The quality score of texts: the trained classifier on the whole text."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tasks.filter.fasttext_model.scorer import load_scorer

SCHEMA = pa.schema([("quality_score", pa.float64())])


def measure_quality(model: Path, texts: pa.Array) -> pa.RecordBatch:
    """The score of each text under the model in this folder; null without words."""
    scores, words = load_scorer(model).score(texts)
    return pa.record_batch([pa.array(scores, mask=words == 0)], SCHEMA)
