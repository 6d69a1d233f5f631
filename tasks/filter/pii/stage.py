"""The stage that finds personal data."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.pii.config import PiiConfig
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=4, name="pii", part_of="filter", runtime=("data",))
def pii_signals(config: PiiConfig, documents: Artifact, out: Output) -> None:
    """Find personal data: data with a fixed form by patterns, checksums and Presidio's recognisers, names by spaCy's
    small English model.

    Columns: `pii`, a list of (entity, start, end, score) by position, in characters, and `pii_findings`, their number.
    """
    from tasks.filter.pii.measure import measure_pii

    write_signals(functools.partial(measure_pii, config), documents, out)
