"""The entries of the user's lists as signals: the settings, the stage, and the look-up.

The digests of the lists' files are part of the key.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pydantic import Field

from storage.artifact import Artifact
from storage.digest_cache import remembered_digest
from storage.errors import EmptyOutput, SourceError
from tasks.filter.lists.read import NOT_WORD, domains_of, host_of, hosts_in, plain_url, read_list
from tasks.filter.lists.words import WITHOUT_SPACES, WordList
from tasks.filter.metadata import first_texts
from tasks.filter.side_files import read_signals, write_signals
from tasks.stage import stage
from tasks.stage.config import StageConfig
from tasks.stage.output import Output


class UrlWords(StageConfig):
    """Words in addresses, as RefinedWeb counts them (Penedo et al. 2023, appendix G.1)."""

    file: str = Field(description="path of the file, with one word per line")
    least: int = Field(1, ge=1, description="minimum words of the file in an address (FineWeb: 1 hard, 2 soft words)")
    anywhere: bool = Field(
        False, description="also match within words, after removing everything but letters and digits from the address"
    )


class ListsConfig(StageConfig):
    """Lists, and the fields with a document's address. A line that starts with # is a comment."""

    url_fields: list[str] = Field(
        ["url", "uri", "source_url"],
        min_length=1,
        description="metadata fields with the address, or paths such as `meta.url`",
    )
    hosts: list[str] = Field(
        [], description="files with a host or domain per line, plain or as in /etc/hosts, which includes its subdomains"
    )
    urls: list[str] = Field(
        [], description="files with an address per line, whose `https://`, `www.` and final / don't matter"
    )
    url_words: list[UrlWords] = Field([], description="words in addresses")
    words: dict[str, str] = Field(
        {},
        description="files with a word or phrase per line, by the language of the documents they apply to, or `any`. "
        "They match in upper or lower case, as whole words, and in ja, th and zh also within words (C4)",
    )


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


class UrlList(NamedTuple):
    """Words in addresses."""

    words: tuple[str, ...]
    least: int
    anywhere: bool

    def find(self, url: str) -> str:
        """The words in the address, joined by commas, or "" if they are fewer than `least`."""
        split = {word.lower() for word in NOT_WORD.split(url)}
        joined = NOT_WORD.sub("", url).lower() if self.anywhere else ""
        matches = [word for word in self.words if (word in joined if self.anywhere else word in split)]
        return ",".join(matches) if len(matches) >= self.least else ""


class Lists(NamedTuple):
    """All lists of a config, ready to use."""

    hosts: frozenset[str]
    urls: frozenset[str]
    url_words: tuple[UrlList, ...]
    words: dict[str, WordList]


def measure_lists(config: ListsConfig, texts: pa.Array, metadata: pa.Array) -> pa.RecordBatch:
    """The entries that D documents have. For the columns see `lists_signals`."""
    lists = _lists(config.model_dump_json())
    urls = first_texts(metadata, config.url_fields)
    columns = {
        "listed_url_known": pa.array([bool(url) for url in urls], pa.bool_()),
        "listed_host": pa.array([_listed_host(lists, url) for url in urls], pa.string()),
        "listed_url": pa.array([_listed_url(lists, url) for url in urls], pa.string()),
        "listed_url_words": pa.array([_listed_words(lists, url) for url in urls], pa.string()),
    }
    read = texts.to_pylist() if lists.words else []
    if lists.words:
        columns["listed_draw"] = pa.array(
            [xxhash.xxh3_64_intdigest(text.encode()) / 2**64 for text in read], pa.float64()
        )
    for language, words in lists.words.items():
        columns[f"listed_word_{language}"] = pa.array([words.find(text) for text in read], pa.string())
    return pa.record_batch(columns)


def _listed_host(lists: Lists, url: str) -> str:
    if not url or not lists.hosts:
        return ""
    return next((domain for domain in domains_of(host_of(url)) if domain in lists.hosts), "")


def _listed_url(lists: Lists, url: str) -> str:
    plain = plain_url(url) if lists.urls else ""
    return plain if plain in lists.urls else ""


def _listed_words(lists: Lists, url: str) -> str:
    return next((words for each in lists.url_words if (words := each.find(url))), "")


@functools.lru_cache(1)
def _lists(config_json: str) -> Lists:
    """The lists of a config, read once per process."""
    config = ListsConfig.model_validate_json(config_json)
    url_words = [
        UrlList(tuple(sorted({NOT_WORD.sub("", word).lower() for word in read_list(each.file)} - {""})), *chosen)
        for each in config.url_words
        for chosen in [(each.least, each.anywhere)]
    ]
    return Lists(
        hosts_in(config.hosts),
        frozenset(plain_url(line) for file in config.urls for line in read_list(file)),
        tuple(url_words),
        {
            language: WordList(read_list(file), whole=language not in WITHOUT_SPACES)
            for language, file in sorted(config.words.items())
        },
    )
