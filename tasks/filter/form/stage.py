"""The stage that measures the form of texts."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.form.config import FormConfig
from tasks.filter.form.words.tokens import PACKAGE, spacy_version
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.output import Output


def fingerprints(config: FormConfig) -> dict[str, str]:
    """The version of spaCy, if it cuts the words. Raises ConfigError if it can't cut this language."""
    return {PACKAGE: spacy_version(config.spacy)} if config.spacy else {}


@stage(version=5, name="form", part_of="filter", runtime=("data",), sources=fingerprints)
def form_signals(config: FormConfig, documents: Artifact, out: Output) -> None:
    """Measure the signals of Gopher's quality and repetition rules, C4 and FineWeb (see `rules.py`).

    Writes side files with a column per signal.
    """
    from tasks.filter.form.measure import measure_form

    write_signals(functools.partial(measure_form, config), documents, out, releases_gil=config.spacy is None)
