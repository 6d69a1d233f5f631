"""Findings of personal data, and their column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa


class Finding(NamedTuple):
    """One finding: text[start:end] in characters, and the recogniser's score between 0 and 1."""

    entity: str
    start: int
    end: int
    score: float


FINDING = pa.struct(
    [("entity", pa.string()), ("start", pa.int32()), ("end", pa.int32()), ("score", pa.float64())]
)  # 32 bits are enough: Arrow's strings are shorter than 2^31 bytes
SCHEMA = pa.schema([("pii", pa.list_(FINDING)), ("pii_findings", pa.int64())])


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by position. Of findings that differ only in their score, keep the highest."""
    best: dict[tuple[str, int, int], float] = {}
    for entity, start, end, score in findings:
        place = (entity, start, end)
        best[place] = max(score, best.get(place, 0.0))
    return sorted((Finding(*place, score) for place, score in best.items()), key=lambda f: (f.start, f.end, f.entity))


def to_batch(rows: Sequence[Sequence[Finding]]) -> pa.RecordBatch:
    """The columns of D documents' findings."""
    column = [[finding._asdict() for finding in row] for row in rows]
    return pa.record_batch([pa.array(column, SCHEMA.field("pii").type), pa.array(map(len, rows), pa.int64())], SCHEMA)
