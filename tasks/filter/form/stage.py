"""The stage that measures the form of texts."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.form.config import FormConfig
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=1, name="form", part_of="filter", runtime=("data",))
def form_signals(config: FormConfig, documents: Artifact, out: Output) -> None:
    """Measure what the rules of Gopher quality, Gopher repetition, C4 and FineWeb look at; see `rules.py` for each.

    Read are the texts' bytes alone, by compiled code that leaves the interpreter's lock to others.
    """
    from tasks.filter.form.measure import measure_form

    write_signals(functools.partial(measure_form, config), documents, out, threads=True)
