"""The stage that finds personal data."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.first_pass.measure import write_passed
from tasks.filter.pii.config import PiiConfig
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=8, name="pii", part_of="filter", runtime=("data",))
def pii_signals(config: PiiConfig, documents: Artifact, passed: Artifact | None, out: Output) -> None:
    """Find personal data: data with a fixed form by patterns, checksums and Presidio's recognisers, names by spaCy's
    small English model.

    Columns: `pii`, a list of (entity, start, end, score) by position, in characters, and `pii_findings`, their number.
    Null for documents that `passed` doesn't mark.
    """
    from tasks.filter.pii.measure import measure_pii

    write_passed(functools.partial(measure_pii, config), documents, passed, out)
