"""The stage that marks the documents that pass the rules of the families measured first."""

from __future__ import annotations

from collections.abc import Mapping

from storage.artifact import Artifact
from tasks.filter.config import FilterConfig
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=1, part_of="filter", runtime=("data", "compute"))
def passed(config: FilterConfig, documents: Artifact, signals: Mapping[str, Artifact], out: Output) -> None:
    """Mark the documents that pass the rules of all families except those in `measured_last`.

    Column: `passed`. If thresholds change but the same documents pass, the bytes stay the same, and so do the signals
    that are measured last.
    """
    from tasks.filter.first_pass.mark import mark

    mark(config, documents, signals, out)
