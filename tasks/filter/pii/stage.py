"""The measuring stage of personal data."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.pii.config import PiiConfig
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=1, name="pii", part_of="filter", runtime=("data",))
def pii_signals(config: PiiConfig, documents: Artifact, out: Output) -> None:
    """Findings of personal data with their places, and how many they are.

    Written: `pii` (entity, start, end, score; characters, by position) and `pii_findings`. Patterns are Presidio's
    recognisers, names are found by spaCy's small English model.
    """
    from tasks.filter.pii.measure import measure_pii  # heavy things are imported when it runs

    write_signals(functools.partial(measure_pii, config), documents, out)
