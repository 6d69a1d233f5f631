"""The stage that measures mathematics."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.mathematics.config import MathematicsConfig
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=2, name="mathematics", part_of="filter", runtime=("data",))
def mathematics_signals(config: MathematicsConfig, documents: Artifact, out: Output) -> None:
    """Find LaTeX formulas. Columns: `mathematics_formulas`, their number, and `mathematics_share`, the share of the
    text's characters that they take, marks included."""
    from tasks.filter.mathematics.measure import measure_mathematics

    write_signals(functools.partial(measure_mathematics, config), documents, out)
