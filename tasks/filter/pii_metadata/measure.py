"""Findings of personal data in the fields of metadata, a row per document.

A value is searched as it is, and again after the name of its field and of each field around that one: in
`{"phone": {"home": "415 555 2671"}}` only these names say what the digits are. Texts are searched at any depth. Numbers
are skipped, as most of them are identifiers.
"""

from __future__ import annotations

import functools

import pyarrow as pa
from pydantic import Field

from storage.artifact import Artifact
from tasks.filter.first_pass.measure import write_passed
from tasks.filter.pii.config import PiiConfig
from tasks.filter.pii.findings import FINDING, Finding, in_order
from tasks.filter.pii.measure import measure_pii
from tasks.filter.pii_metadata.fields import Fields, fields_of, texts_of
from tasks.stage import stage
from tasks.stage.config import StageConfig
from tasks.stage.output import Output

IN_FIELD = pa.struct([("field", pa.string()), *FINDING])
SCHEMA = pa.schema([("pii_metadata", pa.list_(IN_FIELD))])


class MetadataConfig(StageConfig):
    """Settings of the search for personal data in metadata, which works as in texts."""

    measure: PiiConfig = Field(default_factory=PiiConfig, description="how personal data is found")
    fields: Fields = Field("all", description="fields to search, or paths such as meta.url, or all for every text")


@stage(version=8, name="pii_metadata", part_of="filter", runtime=("data",))
def metadata_signals(config: MetadataConfig, documents: Artifact, passed: Artifact | None, out: Output) -> None:
    """Find personal data in the documents' metadata, as `pii` does in their texts.

    Column: `pii_metadata`, a list of (field, entity, start, end, score), in characters of the field's value. A nested
    field is named by its path, as in `meta.url` and `tags[0]`. Null for documents that `passed` doesn't mark.
    """
    # In threads: metadata is short, and measured before worker processes would have started
    write_passed(
        functools.partial(measure_metadata, config), documents, passed, out, columns=["metadata"], releases_gil=True
    )


def measure_metadata(config: MetadataConfig, metadata: pa.Array) -> pa.RecordBatch:
    """`pii_metadata` of D documents' metadata."""
    places: list[tuple[int, str, int]] = []  # row, field, and where its value begins
    texts: list[str] = []
    for row, value in enumerate(metadata.to_pylist()):
        for text in texts_of(fields_of(value), config.fields):
            for prefix in _prefixes(text.keys):
                places.append((row, text.path, len(prefix)))
                texts.append(prefix + text.value)
    by_field: list[dict[str, list[Finding]]] = [{} for _ in range(len(metadata))]
    findings = measure_pii(config.measure, pa.array(texts, pa.string()))["pii"].to_pylist()
    for (row, path, begin), row_findings in zip(places, findings, strict=True):
        for finding in (Finding(**each) for each in row_findings):
            if finding.start >= begin:
                moved = finding._replace(start=finding.start - begin, end=finding.end - begin)
                by_field[row].setdefault(path, []).append(moved)
    column = [
        [{"field": path, **each._asdict()} for path, in_field in fields.items() for each in in_order(in_field)]
        for fields in by_field
    ]
    return pa.record_batch([pa.array(column, SCHEMA.field(0).type)], SCHEMA)


def _prefixes(keys: tuple[str | int, ...]) -> list[str]:
    """The texts to put before a value for the search: "", and each name on its path, as words and as it is. Settings
    are written like `api_key`, and must begin their line."""
    names = [key for key in reversed(keys) if isinstance(key, str) and key]
    return list(dict.fromkeys(["", *(f"{form}: " for name in names for form in (name.replace("_", " "), name))]))
