"""The kinds of repeated spans: runs of words, runs of sentences, or lines of one host.

All three are runs of units: a window of `size` consecutive ones has a key, and windows of equal keys are compared as
find.py says. C4 drops "all but one of any three-sentence span occurring more than once" (Raffel et al. 2020, section
2.2). CCNet drops lines that a part of the crawl had before (Wenzek et al. 2020). Here a line is dropped if enough
documents of the same host have it.

A sentence ends at a line's end, at ".", "!", "?" or "…" before white space, and at their Chinese and Japanese forms
anywhere, with the quotation marks and brackets that follow. Sentences and lines are compared only by their words, and
one without a word belongs to the one before it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import xxhash

from storage.shards.arrays import Int64, UInt8, UInt64
from storage.shards.documents import read_batches
from tasks.dedup.config import DedupConfig
from tasks.dedup.keeping.condition import CLOSERS
from tasks.dedup.spans import word_kernels
from tasks.text.characters import SIZE, Characters, characters
from tasks.text.scan import utf8

STOPS, FULL_STOPS = ".!?…؟۔।॥", "。！？｡។៕။"
URLS = ("url", "uri", "source_url", "warc_target_uri", "WARC-Target-URI", "link")


@dataclass(frozen=True)
class Kind:
    """Windows of `size` consecutive `unit`s. With `scope`, only those of one host or source are compared, and those in
    fewer than `documents` documents stay. The ledger compares units with `size`."""

    unit: Literal["word", "sentence", "line"]
    reason: str
    size: int
    tables: Characters
    scope: Literal["host", "source"] | None = None
    documents: int = 1

    def find(self, texts: pa.Array) -> tuple[UInt64, Int64, Int64]:
        """(hashes, starts, ends) of the units, laid out as `word_kernels.find_words` says."""
        if self.unit == "word":
            return word_kernels.find_words(*utf8(texts), *self.tables)
        return word_kernels.find_sentences(*utf8(texts), *self.tables, stops(self.unit == "sentence"))

    def salts(self, path: Path) -> UInt64 | None:
        """For each document of a shard, the hash to combine its keys with, so that only equal scopes are compared."""
        if self.scope is None:
            return None
        batches = (batch for _, batch in read_batches(path, ["source", "metadata"]))
        parts = [salts_of(batch["source"], batch["metadata"], self.scope) for batch in batches]
        return np.concatenate([np.empty(0, np.uint64), *parts])


def kinds_of(config: DedupConfig) -> Sequence[Kind]:
    """The kinds of spans that the config removes."""
    case, white_space = config.sketch.ignore_case, config.sketch.ignore_white_space
    kinds = []
    if config.sentences:
        kinds.append(Kind("sentence", "repeated_sentences", config.sentences.count, characters(case, True)))
    if config.lines:
        least = config.lines.documents
        kinds.append(Kind("line", "repeated_line", 1, characters(case, True), config.lines.by, least))
    if config.spans:
        words = characters(case, white_space, True)
        kinds.append(Kind("word", "repeated_span", config.spans.min_words, words))
    return kinds


@functools.cache
def stops(sentences: bool) -> UInt8:
    """The effect of each code point on a sentence. Without `sentences` none has any, so that only lines end."""
    table = np.zeros(SIZE, np.uint8)
    if sentences:
        for some, mark in ((STOPS, word_kernels.STOP), (FULL_STOPS, word_kernels.FULL), (CLOSERS, word_kernels.CLOSER)):
            table[[ord(character) for character in some]] = mark
    return table


def salts_of(sources: pa.Array, metadata: pa.Array, scope: Literal["host", "source"]) -> UInt64:
    """A hash of each document's scope."""
    rows = zip(sources.to_pylist(), metadata.to_pylist(), strict=True)
    names = (scope_of(source, known, scope).encode("utf-8", "surrogatepass") for source, known in rows)
    return np.array([xxhash.xxh3_64_intdigest(name) for name in names], np.uint64)


def scope_of(source: str, metadata: str | None, scope: Literal["host", "source"]) -> str:
    """The host of the document's address, or its source if `scope` says so or it has no address. The address is the
    first of URLS in the metadata or in an object within it. The host is without "www."."""
    if scope == "host":
        known = _object(metadata)
        nested = [value for value in known.values() if isinstance(value, dict)]
        for fields in (known, *nested):
            for name in URLS:
                if host := _host(fields.get(name)):
                    return f"host {host}"
    return f"source {source}"


def _object(metadata: str | None) -> dict[str, Any]:
    """The metadata. Empty if another program wrote something other than a JSON object."""
    try:
        known = json.loads(metadata or "{}")
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}


def _host(address: object) -> str | None:
    if not isinstance(address, str):
        return None
    try:
        host = urlsplit(address if "//" in address else f"//{address}").hostname
    except ValueError:  # brackets without an IPv6 address
        return None
    return host.removeprefix("www.") if host else None
