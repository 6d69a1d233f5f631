"""Findings of personal data in the fields of metadata, a row per document.

A value is searched as it is, and behind the name of its field and of each that the field is within: in
`{"phone": {"home": "415 555 2671"}}` that is what says what the digits are. Texts are looked at however deep they are
nested. Numbers are left alone, as most of them are identifiers.
"""

from __future__ import annotations

import pyarrow as pa

from tasks.filter.pii.findings import FINDING, Finding, in_order
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
            for said in _before(text.keys):
                places.append((row, text.path, len(said)))
                texts.append(said + text.value)
    by_field: list[dict[str, list[Finding]]] = [{} for _ in range(len(metadata))]
    findings = measure_pii(config.measure, pa.array(texts, pa.string()))["pii"].to_pylist()
    for (row, path, begin), row_findings in zip(places, findings, strict=True):
        for finding in (Finding(**each) for each in row_findings):
            if finding.start >= begin:
                moved = finding._replace(start=finding.start - begin, end=finding.end - begin)
                by_field[row].setdefault(path, []).append(moved)
    found = [
        [{"field": path, **each._asdict()} for path, each_found in fields.items() for each in in_order(each_found)]
        for fields in by_field
    ]
    return pa.record_batch([pa.array(found, SCHEMA.field(0).type)], SCHEMA)


def _before(keys: tuple[str | int, ...]) -> list[str]:
    """What a value is searched behind: nothing, and each name of its path as words, and as it is: `api_key` is how
    settings are written, and a setting must begin its line."""
    names = [key for key in reversed(keys) if isinstance(key, str) and key]
    return list(dict.fromkeys(["", *(f"{said}: " for name in names for said in (name.replace("_", " "), name))]))
