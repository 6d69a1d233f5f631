"""Personal data as signals: the findings in each text."""

from __future__ import annotations

import functools

import pyarrow as pa

from storage.artifact import Artifact
from tasks.filter.first_pass.measure import write_passed
from tasks.filter.pii.config import PiiConfig
from tasks.filter.pii.findings import Finding, in_order, to_batch
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=8, name="pii", part_of="filter", runtime=("data",))
def pii_signals(config: PiiConfig, documents: Artifact, passed: Artifact | None, out: Output) -> None:
    """Find personal data: data with a fixed form by patterns, checksums and Presidio's recognisers, names by spaCy's
    small English model.

    Columns: `pii`, a list of (entity, start, end, score) by position, in characters, and `pii_findings`, their number.
    Null for documents that `passed` doesn't mark.
    """
    write_passed(functools.partial(measure_pii, config), documents, passed, out)


def measure_pii(config: PiiConfig, texts: pa.Array) -> pa.RecordBatch:
    """`pii` and `pii_findings` of D texts."""
    rows: list[list[Finding]] = [[] for _ in range(len(texts))]
    wanted = frozenset(config.entities)
    if config.method != "ner":
        from tasks.filter.pii.patterns.candidates import candidates, folded
        from tasks.filter.pii.patterns.find import find_patterns

        plain = folded(texts)
        for row, hits in candidates(plain):
            rows[row] = find_patterns(plain[row].as_py(), hits, wanted, config.window)
    if config.method != "patterns":
        from tasks.filter.pii.names import find_names  # spaCy takes a second to import

        names = find_names(texts.to_pylist(), wanted)
        rows = [in_order([*row, *row_names]) for row, row_names in zip(rows, names, strict=True)]
    return to_batch(rows)
