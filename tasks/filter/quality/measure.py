"""The quality score of texts, from the classifier on the whole text."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tasks.filter.classifier.scorer import is_classifier, open_classifier
from tasks.filter.classifier.workers import CPU, Placement
from tasks.filter.fasttext_model.scorer import load_scorer

SCHEMA = pa.schema([("quality_score", pa.float64())])


def measure_quality(model: Path, texts: pa.Array, where: Placement = CPU) -> pa.RecordBatch:
    """The score of each text under the model in this folder, null for a text without words."""
    scorer = open_classifier(model, where.here()) if is_classifier(model) else load_scorer(model)
    scores, words = scorer.score(texts)
    return pa.record_batch([pa.array(scores, mask=words == 0)], SCHEMA)
