"""The stage `pii_pairs`: personal data in pairs."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.pii.config import PiiConfig
from tasks.filter.side_files import FILE
from tasks.shards import collect, map_shards
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=6, name="pii_pairs", part_of="pairs", runtime=("data",))
def pair_signals(
    config: PiiConfig, instructions: Artifact, preferences: Artifact, labelled: Artifact | None, out: Output
) -> None:
    """Find personal data in instruction and preference pairs and labelled rows, as `pii` does in documents.

    Writes for each role and file `pii`, a list of (entity, start, end, score), and `pii_findings`, a row per message.
    """
    from tasks.filter.pairs.measure import by_role, measure_pairs

    for role, pairs in by_role(instructions, preferences, labelled).items():
        measured = map_shards(functools.partial(measure_pairs, config), pairs.files("*.jsonl"), out, role, "files")
        collect(measured, FILE, out.path / role)
