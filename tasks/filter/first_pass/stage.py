"""The stage that marks the documents for which the last signals are measured."""

from __future__ import annotations

from collections.abc import Mapping

from storage.artifact import Artifact
from tasks.filter.config import FilterConfig
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=1, part_of="filter", runtime=("data", "compute"))
def passed(config: FilterConfig, documents: Artifact, signals: Mapping[str, Artifact], out: Output) -> None:
    """Mark the documents that pass the rules of all families but those in `measured_last`.

    Column: `passed`. Thresholds that move without moving a document leave the same bytes, and with them the signals
    that are measured last.
    """
    from tasks.filter.first_pass.mark import mark

    mark(config, documents, signals, out)
