"""The sketches of a corpus, measured once: a row per document, and its MinHash signature (Broder 1997).

They are a separate artifact, aligned row by row with the document shards: a changed threshold repeats the comparison
but not the measurement, and a later crawl can be compared with them without the texts.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from storage.artifact import Artifact
from storage.shards.arrays import Int64, UInt8, UInt32, as_arrow
from storage.shards.documents import count_rows, read_batches, shard_name
from storage.shards.parquet import parquet_writer
from tasks.dedup import kernels
from tasks.dedup.config import SketchConfig
from tasks.dedup.keeping.condition import conditions
from tasks.shards import collect_all
from tasks.shards.incremental import map_new_shards
from tasks.stage.output import Output
from tasks.text.scan import Scanned, Scanner

ROWS, SIGNATURES = "rows.parquet", "signatures.npy"
FOLDERS = {ROWS: "rows", SIGNATURES: "signatures"}
CONTENT = b"content"  # Parquet metadata: a hash of the shard's ids, which identifies it whatever its number
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("exact", pa.binary(16)),
        ("length", pa.int64()),
        ("words", pa.int64()),
        ("repairs", pa.uint32()),
        ("text", pa.int64()),
        ("other", pa.int64()),
        ("longest", pa.int64()),
    ]
)


class Sketches(NamedTuple):
    """Of a batch of texts: the 128-bit hash (texts × 16), bytes and words of the normalised text, and its signature."""

    exact: UInt8
    lengths: Int64
    words: Int64
    signatures: UInt32


def sketch_corpus(config: SketchConfig, documents: Artifact, out: Output) -> None:
    """The stage `sketches`."""
    work = functools.partial(_sketch_shard, config)
    results = map_new_shards(work, documents, out, "sketch", files=FOLDERS, releases_gil=True)
    collect_all(results, FOLDERS, out.path)
    sources: Counter[str] = Counter()
    for result in results:
        sources.update(result.counts["sources"])
    out.count(sketched=sum(sources.values()), sources=dict(sorted(sources.items())))


def permutations(config: SketchConfig) -> tuple[UInt32, UInt32]:
    """(a, b) of datasketch's `affine32` scheme: x → a·x + b mod 2³² over premixed 32-bit hashes, with a odd."""
    draw = np.random.RandomState(config.seed)
    a = draw.randint(0, 1 << 31, config.permutations, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    return a, draw.randint(0, 1 << 32, config.permutations, dtype=np.uint32)


def scanner_of(config: SketchConfig, *, words: bool = True) -> Scanner:
    """A scanner that normalises text as the config says."""
    return Scanner(
        ignore_case=config.ignore_case,
        ignore_white_space=config.ignore_white_space,
        words=words,
        part_unspaced=True,
        ignore_invisible=True,
    )


def sketch_texts(scanner: Scanner, ngram: int, texts: pa.Array, a: UInt32, b: UInt32) -> Sketches:
    """The sketches of a string column."""
    exact = np.empty((len(texts), 16), np.uint8)
    lengths, words = np.empty(len(texts), np.int64), np.empty(len(texts), np.int64)
    signatures = np.empty((len(texts), len(a)), np.uint32)
    for scanned in scanner.scan(texts):
        rows = scanned.rows
        exact[rows] = np.frombuffer(b"".join(exact_hashes(scanned)), np.uint8).reshape(-1, 16)
        lengths[rows] = np.diff(scanned.text_ends, prepend=0)
        words[rows] = np.diff(scanned.word_ends, prepend=0)
        signed = np.empty((len(rows), len(a)), np.uint32)
        kernels.sign(scanned.words, scanned.word_ends, ngram, a, b, signed)
        signatures[rows] = signed
    return Sketches(exact, lengths, words, signatures)


def exact_hashes(scanned: Scanned) -> Iterator[bytes]:
    """The 128-bit hash (xxh3) of each normalised text."""
    view = scanned.text.data
    start = 0
    for end in scanned.text_ends.tolist():
        yield xxhash.xxh3_128_digest(view[start:end])
        start = end


def _sketch_shard(config: SketchConfig, shard: Path, folder: Path) -> dict[str, Any]:
    scanner = scanner_of(config)
    a, b = permutations(config)
    header = {"descr": "<u4", "fortran_order": False, "shape": (count_rows(shard), config.permutations)}
    content = xxhash.xxh3_64()
    sources: Counter[str] = Counter()
    with parquet_writer(folder / ROWS, SCHEMA) as writer, (folder / SIGNATURES).open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for _, batch in read_batches(shard, ["id", "source", "text"]):
            made = sketch_texts(scanner, config.ngram, batch["text"], a, b)
            exact = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(batch), [None, pa.py_buffer(made.exact)])
            measured = (made.lengths, made.words, *conditions(batch["text"]))
            columns = [exact, *(as_arrow(values) for values in measured)]
            writer.write_batch(pa.record_batch([batch["id"], batch["source"], *columns], schema=SCHEMA))
            file.write(made.signatures.data)
            content.update("".join(batch["id"].to_pylist()).encode())
            sources.update(batch["source"].to_pylist())
        writer.add_key_value_metadata({CONTENT: content.digest().hex()})
    return {"sources": dict(sources)}


def shard_files(sketched: Artifact, number: int) -> tuple[Path, Path]:
    """The files (rows, signatures) of a shard."""
    return sketched.path / "rows" / shard_name(number), sketched.path / "signatures" / f"{number:05d}.npy"
