"""What enough documents of a host have in common, as tables for the signals and as text for people.

In text, … stands for each gap of a template, so that a table shows what the documents share, and nobody's name or
number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Int64, UInt64
from storage.shards.documents import read_batches
from storage.shards.lines import write_json_lines
from tasks.dedup.spans.kinds import salts_of, scope_of
from tasks.filter.templates.config import TemplateCountsConfig
from tasks.filter.templates.sentences import COUNTED, find_sentences
from tasks.stage.output import Output

HOSTS = "hosts"
LISTED = 1000  # of each kind in the file, the most frequent
SHOWN, OF_A_HOST = 20, 3  # in a table
CHARACTERS = 160
TITLES = {"sentences": "Repeated sentences", "templates": "Templates", "openings": "Openings"}

Key = tuple[str, int]  # a kind and a key of this kind


class Frequent(NamedTuple):
    """Keys, ascending, with the number of documents that have each, the number of its host's documents, and the row of
    a document that has it."""

    keys: UInt64
    documents: Int64
    of_host: Int64
    rows: Int64


def write_table(name: str, keys: UInt64, documents: Int64, folder: Path) -> None:
    """Write NAME.npy, to map into memory: the keys, ascending, and the documents of each, two rows of 64 bits."""
    np.save(folder / f"{name}.npy", np.stack((keys, documents.astype(np.uint64))))


def load_table(name: str, folder: Path) -> tuple[UInt64, Int64]:
    """The keys and documents in a table of `write_table`."""
    keys, documents = np.load(folder / f"{name}.npy", mmap_mode="r")
    return keys, documents.view(np.int64)


def look_up(keys: UInt64, values: Int64, wanted: UInt64) -> Int64:
    """The values of the `wanted` keys, 0 for an unknown one. `keys` are ascending."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0).astype(np.int64)


def write_shown(
    config: TemplateCountsConfig,
    shards: Sequence[Path],
    starts: Sequence[int],
    frequent: dict[str, Frequent],
    out: Output,
) -> None:
    """Write templates.jsonl with the LISTED most frequent of each kind, and show some of each host in tables."""
    chosen = {kind: _most(table) for kind, table in frequent.items()}
    wanted = np.unique(np.concatenate([frequent[kind].rows[chosen[kind]] for kind in COUNTED]))
    keys = {(kind, key) for kind in COUNTED for key in frequent[kind].keys[chosen[kind]].tolist()}
    read = _read(config, shards, starts, wanted, keys)
    listed = []
    for kind in COUNTED:
        table = frequent[kind]
        rows: list[dict[str, Any]] = []
        for place in chosen[kind].tolist():
            host, texts = read[int(table.rows[place])]
            documents, of_host = int(table.documents[place]), int(table.of_host[place])
            rows.append(
                {
                    "host": host,
                    "documents": documents,
                    "share of the host": round(documents / of_host, 4),
                    "text": texts[kind, int(table.keys[place])],
                }
            )
        listed += [{"kind": kind, **row} for row in rows]
        shown, seen = [], Counter[str]()
        for row in rows:
            seen[row["host"]] += 1
            if seen[row["host"]] <= OF_A_HOST:
                shown.append(row)
        if shown:
            out.table(TITLES[kind], shown[:SHOWN])
    write_json_lines(out.path / "templates.jsonl", listed)


def _most(table: Frequent) -> Int64:
    return np.lexsort((table.keys, -table.documents))[:LISTED]


def _read(
    config: TemplateCountsConfig, shards: Sequence[Path], starts: Sequence[int], wanted: Int64, keys: set[Key]
) -> dict[int, tuple[str, dict[Key, str]]]:
    """By row, the host of a document, and the text of those of these keys that it has."""
    read = {}
    for shard, first in zip(shards, starts, strict=True):
        after = wanted[wanted >= first] - first
        for start, batch in read_batches(shard, ["text", "source", "metadata"], holding=after.tolist()):
            inside = after[(after >= start) & (after < start + len(batch))] - start
            for place in inside.tolist():
                row = batch.slice(place, 1)
                host = scope_of(row["source"][0].as_py(), row["metadata"][0].as_py(), config.by)
                read[first + start + place] = host, _texts(config, row, keys)
    return read


def _texts(config: TemplateCountsConfig, row: pa.RecordBatch, keys: set[Key]) -> dict[Key, str]:
    salts = salts_of(row["source"], row["metadata"], config.by)
    text = pa.array(row["text"].to_pylist(), pa.string())  # whose bytes begin at 0, as sentences do
    sentences = find_sentences(config, text, salts, mark=True)
    written = text[0].as_py().encode()
    texts: dict[Key, str] = {}
    for kind, counted in sentences.counted.items():
        columns = (counted.places, counted.stops, counted.keys)
        for place, stop, key in zip(*(column.tolist() for column in columns), strict=True):
            if (kind, key) in keys and (kind, key) not in texts:
                part = slice(int(sentences.starts[place]), int(sentences.starts[stop]))
                texts[kind, key] = _with_gaps(written[part], sentences.marks[part].tobytes())
    return texts


def _with_gaps(text: bytes, marks: bytes) -> str:
    """The text on one line, with … in place of marked bytes."""
    parts: list[bytes] = []
    at = 0
    while at < len(text) and len(parts) < CHARACTERS:
        end = marks.find(b"\1" if not marks[at] else b"\0", at)
        end = len(text) if end < 0 else end
        parts.append("…".encode() if marks[at] else text[at:end])
        at = end
    plain = " ".join(b"".join(parts).decode(errors="replace").split())
    while "… …" in plain:
        plain = plain.replace("… …", "…")
    return plain if len(plain) <= CHARACTERS else plain[:CHARACTERS] + " …"
