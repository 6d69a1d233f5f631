"""The stage that looks up documents in lists."""

from __future__ import annotations

import functools
from pathlib import Path

import pyarrow.compute as pc

from storage.artifact import Artifact
from storage.digest_cache import remembered_digest
from storage.errors import EmptyOutput, SourceError
from tasks.filter.lists.config import ListsConfig
from tasks.filter.side_files import read_signals, write_signals
from tasks.stage import stage
from tasks.stage.output import Output


def fingerprints(config: ListsConfig) -> dict[str, str]:
    """Digests of the files. Raises SourceError for a missing file."""
    files = [*config.hosts, *config.urls, *(each.file for each in config.url_words), *config.words.values()]
    digests = {}
    for file in files:
        path = Path(file).expanduser()
        if not path.is_file():
            raise SourceError(f"{file} does not exist.", "Check the paths under `lists`.")
        digests[file] = remembered_digest(path)
    return digests


@stage(version=2, name="lists", part_of="filter", runtime=("data",), sources=fingerprints)
def lists_signals(config: ListsConfig, documents: Artifact, out: Output) -> None:
    """Look for listed hosts, addresses and words.

    Columns: `listed_url_known` (whether the metadata has an address), `listed_host`, `listed_url`, `listed_url_words`
    and, for each language with a list, `listed_word_LANGUAGE`: the entry that a document has, or "". With lists of
    words, also `listed_draw`, a number from 0 to 1 by a hash of the text. Raises EmptyOutput if hosts or addresses are
    listed but no document has an address, because the field must then be another one.
    """
    from tasks.filter.lists.measure import measure_lists

    write_signals(functools.partial(measure_lists, config), documents, out, columns=["text", "metadata"])
    known = total = 0
    for path in sorted(out.path.glob("*.parquet")):
        for batch in read_signals(path, ["listed_url_known"]):
            total += batch.num_rows
            known += pc.sum(batch["listed_url_known"]).as_py() or 0
    out.count(with_url=known)
    if total and not known and (config.hosts or config.urls or config.url_words):
        fields = ", ".join(config.url_fields)
        raise EmptyOutput(
            f"None of {total:,} documents has an address in its metadata ({fields}).",
            "Name the field of your documents in filter.lists.measure.url_fields, or leave hosts and urls out.",
        )
