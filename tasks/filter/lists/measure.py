"""Looks up the entries of lists that documents have."""

from __future__ import annotations

import functools
from typing import NamedTuple

import pyarrow as pa
import xxhash

from tasks.filter.lists.config import ListsConfig
from tasks.filter.lists.read import NOT_WORD, domains_of, host_of, hosts_in, plain_url, read_list
from tasks.filter.lists.words import WITHOUT_SPACES, WordList
from tasks.filter.metadata import first_texts


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
    """The entries that D documents have; see `stage.py` for the columns."""
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
