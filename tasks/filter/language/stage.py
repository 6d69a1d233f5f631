"""The stage that measures languages."""

from __future__ import annotations

import functools
from pathlib import Path

from storage.artifact import Artifact
from storage.digest_cache import remembered_digest
from storage.errors import SourceError
from tasks.checks.extras import need
from tasks.filter.language.config import PACKAGE, SECOND_PACKAGE, LanguageConfig
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.text.packages import package_version


def fingerprints(config: LanguageConfig) -> dict[str, str]:
    """The versions of the packages with the models, or the digest of a file. Raises SourceError where there is none."""
    found = {PACKAGE: package_version(PACKAGE)}
    if config.second == "lingua":
        need("lingua", "filter.language.measure.second")
        found[SECOND_PACKAGE] = package_version(SECOND_PACKAGE)
    elif config.second is not None:
        path = Path(config.second.model).expanduser()
        if not path.is_file():
            raise SourceError(
                f"There is no file {config.second.model}.", "Check `filter.language.measure.second.model`."
            )
        found["second model"] = remembered_digest(path)
    return found


@stage(version=6, name="language", part_of="filter", runtime=("data",), sources=fingerprints)
def language_signals(config: LanguageConfig, documents: Artifact, out: Output) -> None:
    """The language of each document, by fastText's lid.176 (Joulin et al. 2016) on its whole text, but for addresses
    and tags; lines of capitals are read in lower case.

    Columns: `language` (the model's code, ISO 639-1 where it exists), `language_score` (its probability),
    `language_margin` (that minus the probability of the second), `language_share` (of the letters in pieces with a
    clear language, the share in the document's language), `languages` (the shares of all, as JSON, for reports). Null
    for texts without letters.

    With `second` also `language_second` and `language_second_score`: the language that it finds at the beginning,
    in the codes of the first, and its probability; null where it finds none or does not know the first's language.
    """
    from tasks.filter.language.measure import measure_language

    write_signals(functools.partial(measure_language, config), documents, out, releases_gil=True)
