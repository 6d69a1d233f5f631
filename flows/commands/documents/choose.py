"""Chooses documents of an artifact to look at: at random, or by the largest value of a measure.

The shards are read once, a row group at a time, and only the places of the chosen rows are kept. A second pass reads
the row groups that hold them. So memory doesn't grow with the artifact.
"""

from __future__ import annotations

import heapq
import json
import math
import re
import zlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage import refs
from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact
from storage.shards.arrays import Float64
from storage.shards.documents import DOCUMENT_SCHEMA, Document, read_batches
from storage.shards.parquet import open_parquet
from storage.store import Store
from tasks.filter.fasttext_model.sample import draw
from tasks.filter.side_files import read_signals

RANDOM, LONGEST, SHORTEST, REPETITIVE = "random", "longest", "shortest", "repetitive"
MEASURED_BYTES = 1 << 16  # of a text, for its repetition
ORIGINS = ("url", "uri", "source_url", "warc_target_uri", "link", "path", "file", "title")  # the first that it has

Entry = tuple[float, int, int]  # a value, then the shard and the row, negative: of equal values the first place stays


class Wish(NamedTuple):
    """Which documents: the measure to order them by, how many, only those of a source or with words in them, the seed
    of a random choice, whether the smallest values of a signal come first, and how many characters of each (0: all)."""

    by: str = RANDOM
    number: int = 10
    source: str = ""
    search: str = ""
    seed: int = 0
    lowest: bool = False
    width: int = 600


class Shown(NamedTuple):
    """A chosen document. `text` is the part of it from the character `start`, `value` what it was chosen by, unless at
    random."""

    id: str
    source: str
    origin: str
    metadata: dict[str, Any]
    characters: int
    value: float | None
    start: int
    text: str

    @property
    def left_out(self) -> int:
        """Characters after the part that is shown."""
        return self.characters - self.start - len(self.text)


class Chosen(NamedTuple):
    """The chosen documents, the first by the measure first, and the numbers of those that match and of all."""

    documents: list[Shown]
    matching: int
    total: int


class Signal(NamedTuple):
    """A measured column: the artifact of its side files, its name, and the documents that were measured."""

    artifact: Artifact
    column: str
    measured: Artifact


def choose(documents: Artifact, wish: Wish, signal: Signal | None = None) -> Chosen:
    """The documents that a wish is for. With `signal`, in its order, without those that it couldn't measure. Raises
    ConfigError if none matches, DamagedArtifact."""
    heap: list[Entry] = []
    sources: set[str] = set()
    matching = total = 0
    files = documents.files("*.parquet")
    for number, path in enumerate(files):
        values = _signals(path.name, signal) if signal else None
        for start, batch in read_batches(path, _columns(wish)):
            total += len(batch)
            sources.update(pc.unique(batch["source"]).to_pylist())
            measured = _measured(batch, values, path.name) if values is not None else None
            mask = _matches(batch, wish)
            rows = np.flatnonzero(mask if measured is None else mask & ~np.isnan(measured))
            matching += len(rows)
            found = measured[rows] if measured is not None else _values(batch, rows, wish, (number, start))
            for row, value in zip(rows.tolist(), (-found if wish.lowest else found).tolist(), strict=True):
                entry = (value, -number, -(start + row))
                if len(heap) < wish.number:
                    heapq.heappush(heap, entry)
                elif entry > heap[0]:
                    heapq.heapreplace(heap, entry)
    if wish.source and wish.source not in sources:
        raise ConfigError(f"No document is of source {wish.source}.", f"Sources are {', '.join(sorted(sources))}.")
    shown = _read(files, heap, wish)
    return Chosen([shown[entry] for entry in sorted(heap, reverse=True)], matching, total)


def signal_of(store: Store, artifact: Artifact, by: str) -> Signal | None:
    """The signal that `by` names as NAME:COLUMN, None if it names a measure of the text. NAME is a ref, or a family of
    signals that a filter's artifact decided by. Raises ConfigError for an unknown measure or column."""
    if by in (RANDOM, LONGEST, SHORTEST, REPETITIVE):
        return None
    name, _, column = by.rpartition(":")
    used = artifact.manifest.uses if artifact.manifest else {}
    if not name:
        families = f", of this artifact also {', '.join(sorted(used))}" if used else ""
        raise ConfigError(
            f"--by {by} is not a measure.",
            f"Choose {RANDOM}, {LONGEST}, {SHORTEST}, {REPETITIVE}, or the column of a signal as NAME:COLUMN, such as "
            f"tiny/toxicity:toxicity_score{families}.",
        )
    signals = store.get(used[name].location if name in used else refs.resolve(store, name), hashed=False)
    numbers = []
    for file in signals.names("*.parquet")[:1]:
        with open_parquet(signals.file(file)) as opened:
            numbers = [field.name for field in opened.schema_arrow if pa.types.is_primitive(field.type)]
    if column not in numbers:
        listed = ", ".join(numbers)
        remedy = f"Choose one of {listed}." if listed else "Name an artifact of signals, such as tiny/toxicity."
        raise ConfigError(f"{name} has no column {column} of numbers.", remedy)
    origin = signals.manifest.origins.get("documents") if signals.manifest else None
    measured = store.get(origin.location, hashed=False).part(origin.part) if origin else artifact.part("documents")
    return Signal(signals, column, measured)


def _columns(wish: Wish) -> list[str]:
    reads_text = wish.search or wish.by in (LONGEST, SHORTEST, REPETITIVE)
    return ["id", "source", *(["text"] if reads_text else [])]


def _matches(batch: pa.RecordBatch, wish: Wish) -> np.ndarray[Any, np.dtype[np.bool_]]:
    mask = np.ones(len(batch), dtype=bool)
    if wish.source:
        mask &= pc.equal(batch["source"], wish.source).to_numpy(zero_copy_only=False)
    if wish.search:
        found = pc.match_substring(batch["text"], wish.search, ignore_case=True)
        mask &= found.to_numpy(zero_copy_only=False)
    return mask


def _values(batch: pa.RecordBatch, rows: np.ndarray[Any, Any], wish: Wish, at: tuple[int, int]) -> Float64:
    """The measure of these rows. `at` is the number of the shard and the first row: copies of a text are drawn
    independently."""
    if wish.by == RANDOM:
        ids = batch["id"].take(pa.array(rows)).to_pylist()
        drawn = (draw(f"{one} {at[0]} {at[1] + row}", f"look {wish.seed}") for row, one in zip(rows, ids, strict=True))
        return np.fromiter(drawn, np.float64, len(rows))
    texts = batch["text"].take(pa.array(rows))
    if wish.by == REPETITIVE:
        return np.array([repetition(text.as_py()) for text in texts], np.float64)
    lengths: Float64 = pc.utf8_length(texts).to_numpy(zero_copy_only=False).astype(np.float64)
    return lengths if wish.by == LONGEST else -lengths


def repetition(text: str) -> float:
    """UTF-8 bytes of a text for each byte of its compressed form, by zlib, over its first 64 KiB: higher, the more it
    repeats itself, and below 1 for a few words."""
    data = text[:MEASURED_BYTES].encode("utf-8", "surrogatepass")[:MEASURED_BYTES]
    return len(data) / len(zlib.compress(data, 1)) if data else 0.0


def _signals(shard: str, signal: Signal) -> Iterator[tuple[str, float]]:
    """Yield the id and the value of each document that was measured in a shard, NaN for null."""
    side_file = signal.artifact.file(shard)
    if not side_file.exists():
        raise _of_others(shard)
    measured = read_batches(signal.measured.file(shard), ["id"])
    for (_, batch), values in zip(measured, read_signals(side_file, [signal.column]), strict=True):
        numbers = pc.fill_null(values[signal.column].cast(pa.float64()), math.nan).to_pylist()
        yield from zip(batch["id"].to_pylist(), numbers, strict=True)


def _measured(batch: pa.RecordBatch, values: Iterator[tuple[str, float]], shard: str) -> Float64:
    """The value of each document of a batch: these are a part of those measured, in the same order."""
    found = []
    for identity in batch["id"].to_pylist():
        value = next((value for known, value in values if known == identity), None)
        if value is None:
            raise _of_others(shard)
        found.append(value)
    return np.array(found, np.float64)


def _of_others(shard: str) -> DamagedArtifact:
    return DamagedArtifact(
        f"The signal was not measured on the documents of {shard}.",
        "Name the artifact whose documents were measured, or one made of it: `gristmill store lineage` shows which.",
    )


def _read(files: list[Path], heap: list[Entry], wish: Wish) -> dict[Entry, Shown]:
    """The chosen documents by their entry."""
    shown = {}
    by_shard: dict[int, dict[int, Entry]] = defaultdict(dict)
    for entry in heap:
        by_shard[-entry[1]][-entry[2]] = entry
    for number, entries in sorted(by_shard.items()):
        wanted = sorted(entries)
        for first, batch in read_batches(files[number], DOCUMENT_SCHEMA.names, wanted):
            for row in wanted[bisect_left(wanted, first) : bisect_left(wanted, first + len(batch))]:
                document = Document(*(batch[name][row - first].as_py() for name in DOCUMENT_SCHEMA.names))
                shown[entries[row]] = _shown(document, entries[row][0], wish)
    return shown


def _shown(document: Document, value: float, wish: Wish) -> Shown:
    text, start = document.text, _start(document.text, wish)
    metadata = _metadata(document.metadata)
    return Shown(
        document.id,
        document.source,
        _origin(metadata),
        metadata,
        len(text),
        None if wish.by == RANDOM else -value if wish.lowest or wish.by == SHORTEST else value,
        start,
        text[start : start + wish.width] if wish.width else text,
    )


def _start(text: str, wish: Wish) -> int:
    """The first character to show: the words that were searched for are in the first quarter, if not in the
    beginning."""
    found = re.search(re.escape(wish.search), text, re.IGNORECASE) if wish.search and wish.width else None
    return found.start() - wish.width // 4 if found and found.end() > wish.width else 0


def _metadata(text: str | None) -> dict[str, Any]:
    """A document's metadata, empty if another program wrote something else than a JSON object."""
    try:
        values = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _origin(metadata: Mapping[str, Any]) -> str:
    """The address, file or title in metadata, also one level deep, or empty."""
    inner = (below for below in metadata.values() if isinstance(below, dict))
    for level in (metadata, *inner):
        for name in ORIGINS:
            if isinstance(level.get(name), str) and level[name]:
                return str(level[name])
    return ""
