"""A classifier's scores of a document's pieces, summed up in columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.filter.classifier.scorer import open_classifier
from tasks.filter.classifier.workers import CPU, Placement
from tasks.filter.signals.config import SCORED_BY, SCORES, ClassifierSignalConfig

SETTLED = "settled"
SCHEMA = pa.schema([*((name, pa.float64()) for name in SCORES), (SETTLED, pa.float64()), (SCORED_BY, pa.string())])
BY = pa.array(["model", "both", "first"])


def measure_scores(
    config: ClassifierSignalConfig, model: Path, texts: pa.Array, where: Placement = CPU
) -> pa.RecordBatch:
    """The columns of each text, null for a text without words. For the columns see `signals`."""
    scorer = open_classifier(model, where.here())
    cut = [scorer.pieces(text) for text in texts.to_pylist()]
    scores, settled = scorer.score_pieces([piece for pieces in cut for piece in pieces])
    counts = np.array([len(pieces) for pieces in cut], np.int64)
    sizes = np.array([len(piece) for pieces in cut for piece in pieces], np.float64)
    rows = np.repeat(np.arange(len(cut)), counts)
    wordless = counts == 0
    total = np.maximum(1, np.bincount(rows, sizes, len(cut)))
    highest, lowest = np.full(len(cut), -np.inf), np.full(len(cut), np.inf)
    np.maximum.at(highest, rows, scores)
    np.minimum.at(lowest, rows, scores)
    begins = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)[~wordless]
    first = np.zeros(len(cut))
    first[~wordless] = scores[begins]
    by_first = np.bincount(rows, settled, len(cut))
    by = np.where(by_first == 0, 0, np.where(by_first < counts, 1, 2))
    values = {
        "score": np.bincount(rows, sizes * scores, len(cut)) / total,
        "highest": highest,
        "lowest": lowest,
        "share": np.bincount(rows, sizes * (scores > config.piece_threshold), len(cut)) / total,
        "first": first,
        SETTLED: np.bincount(rows, sizes * settled, len(cut)) / total,
    }
    columns = [pa.array(column.astype(np.float64), mask=wordless) for column in values.values()]
    return pa.record_batch([*columns, BY.take(pa.array(by, mask=wordless))], SCHEMA)
