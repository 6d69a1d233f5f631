"""The stage that measures languages."""

from __future__ import annotations

import functools
from pathlib import Path

from storage.artifact import Artifact
from storage.digest_cache import remembered_digest
from storage.errors import SourceError
from tasks.filter.language.config import PACKAGE, SECOND_PACKAGE, LanguageConfig
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.text.packages import package_version


def fingerprints(config: LanguageConfig) -> dict[str, str]:
    """The versions of the packages with the models, or the digest of a model file. Raises SourceError for a missing
    one."""
    sources = {PACKAGE: package_version(PACKAGE)}
    if config.second == "lingua":
        sources[SECOND_PACKAGE] = package_version(SECOND_PACKAGE)
    elif config.second is not None:
        path = Path(config.second.model).expanduser()
        if not path.is_file():
            raise SourceError(f"{config.second.model} does not exist.", "Check `filter.language.measure.second.model`.")
        sources["second model"] = remembered_digest(path)
    return sources


@stage(version=6, name="language", part_of="filter", runtime=("data",), sources=fingerprints)
def language_signals(config: LanguageConfig, documents: Artifact, out: Output) -> None:
    """Identify the language of each document with fastText's lid.176 (Joulin et al. 2016). It reads the whole text
    except addresses and tags, and lines of capitals in lower case.

    Columns: `language` (the model's code, ISO 639-1 if it exists), `language_score` (its probability),
    `language_margin` (that minus the probability of the second), `language_share` (of the letters in pieces with a
    clear language, the share in the document's language), `languages` (the shares of all, as JSON, for reports). Null
    for texts without letters.

    `second` adds `language_second` and `language_second_score`: the language that it finds at the beginning, in the
    codes of the first, and its probability. Null if it finds none, or doesn't know the first's language.
    """
    from tasks.filter.language.measure import measure_language

    write_signals(functools.partial(measure_language, config), documents, out, releases_gil=True)
