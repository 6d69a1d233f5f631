"""The language signals as a stage."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.language.config import PACKAGE, LanguageConfig
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.text.packages import package_version


def fingerprints(config: LanguageConfig) -> dict[str, str]:
    """The package that carries the model."""
    return {PACKAGE: package_version(PACKAGE)}


@stage(version=1, name="language", part_of="filter", runtime=("data",), sources=fingerprints)
def language_signals(config: LanguageConfig, documents: Artifact, out: Output) -> None:
    """The language of each document, by fastText's lid.176 (Joulin et al. 2016) on its whole text.

    Columns: `language` (the model's code: ISO 639-1 where there is one), `language_score` (its probability),
    `language_margin` (less that of the second), `language_share` (of the letters in pieces whose language is plain,
    those in pieces of the document's), `languages` (the shares of all, as JSON, for reports). Null without a letter.
    """
    from tasks.filter.language.measure import measure_language  # numba, only when it runs

    write_signals(functools.partial(measure_language, config), documents, out, threads=True)
