"""Findings of personal data in the fields of metadata, a row per document.

A field's name is put before its value while that is searched: in `{"phone": "415 555 2671"}` it is the word that says
what the digits are; in a list that is the list's. Texts are looked at however deep they are nested. Numbers are left
alone, as most of them are identifiers.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tasks.filter.pii.findings import FINDING
from tasks.filter.pii.measure import measure_pii
from tasks.filter.pii_metadata.config import MetadataConfig
from tasks.filter.pii_metadata.fields import fields_of, texts_of

IN_FIELD = pa.struct([("field", pa.string()), *FINDING])
SCHEMA = pa.schema([("pii_metadata", pa.list_(IN_FIELD))])


def measure_metadata(config: MetadataConfig, metadata: pa.Array) -> pa.RecordBatch:
    """`pii_metadata` of D documents' metadata."""
    places: list[tuple[int, str, int]] = []  # row, field, and where its value begins
    texts: list[str] = []
    for row, value in enumerate(metadata.to_pylist()):
        for text in texts_of(fields_of(value), config.fields):
            name = next((key for key in reversed(text.keys) if isinstance(key, str)), "")
            said = f"{name.replace('_', ' ')}: " if name else ""
            places.append((row, text.path, len(said)))
            texts.append(said + text.value)
    found: list[list[dict[str, Any]]] = [[] for _ in range(len(metadata))]
    findings = measure_pii(config.measure, pa.array(texts, pa.string()))["pii"].to_pylist()
    for (row, name, begin), row_findings in zip(places, findings, strict=True):
        for finding in row_findings:
            if finding["start"] >= begin:
                moved = {"start": finding["start"] - begin, "end": finding["end"] - begin}
                found[row].append({"field": name, **finding, **moved})
    return pa.record_batch([pa.array(found, SCHEMA.field(0).type)], SCHEMA)
