"""The stage that measures languages."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.language.config import PACKAGE, SECOND_PACKAGE, LanguageConfig
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.text.packages import package_version


def fingerprints(config: LanguageConfig) -> dict[str, str]:
    """The versions of the packages with the models."""
    return {package: package_version(package) for package in (PACKAGE, *([SECOND_PACKAGE] if config.second else []))}


@stage(version=3, name="language", part_of="filter", runtime=("data",), sources=fingerprints)
def language_signals(config: LanguageConfig, documents: Artifact, out: Output) -> None:
    """The language of each document, by fastText's lid.176 (Joulin et al. 2016) on its whole text, but for addresses
    and tags; lines of capitals are read in lower case.

    Columns: `language` (the model's code, ISO 639-1 where it exists), `language_score` (its probability),
    `language_margin` (that minus the probability of the second), `language_share` (of the letters in pieces with a
    clear language, the share in the document's language), `languages` (the shares of all, as JSON, for reports). Null
    for texts without letters.

    With `second` also `language_second` and `language_second_score`: the language that lingua finds at the beginning,
    in the codes of the first, and its probability; null where it finds none or does not know the first's language.
    """
    from tasks.filter.language.measure import measure_language

    write_signals(functools.partial(measure_language, config), documents, out, threads=True)
