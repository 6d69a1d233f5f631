"""Findings of personal data in a batch of texts, a row per text."""

from __future__ import annotations

import pyarrow as pa

from tasks.filter.pii.config import PiiConfig
from tasks.filter.pii.findings import Finding, in_order, to_batch
from tasks.filter.pii.patterns.candidates import candidates, folded
from tasks.filter.pii.patterns.find import find_patterns


def measure_pii(config: PiiConfig, texts: pa.Array) -> pa.RecordBatch:
    """`pii` and `pii_findings` of D texts."""
    rows: list[list[Finding]] = [[] for _ in range(len(texts))]
    wanted = frozenset(config.entities)
    if config.method != "ner":
        plain = folded(texts)
        for row, hits in candidates(plain):
            rows[row] = find_patterns(plain[row].as_py(), hits, wanted, config.window)
    if config.method != "patterns":
        from tasks.filter.pii.names import find_names  # spaCy takes a second to import

        names = find_names(texts.to_pylist(), wanted)
        rows = [in_order([*row, *row_names]) for row, row_names in zip(rows, names, strict=True)]
    return to_batch(rows)
