"""`python benchmarks/dedup/peers.py TOOL IN_DIR OUT_DIR`: one peer from Parquet shards to Parquet shards, on one core.

Runs in the peers' own environment, so nothing of the project is imported. Each tool is called in the fastest way that
its documentation offers and that still finds duplicates; word 5-grams, 0.8, bands of 8 rows. Where the caller has to
shingle, words are cut by `bytes.translate` and `bytes.split`, in half the time that a regular expression takes. Of each
cluster the first document is kept, once the tool's own similarity estimate confirms it; datatrove alone joins
clusters unverified, as is its way.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

THRESHOLD, NGRAM, ROWS, SEED = 0.8, 5, 8, 42
# Some sketches come in powers of two only: 16 bands there, datatrove's own 14 elsewhere
BANDS, BANDS_POWER = 14, 16
SPACED = bytes(code if code > 127 or chr(code).isalnum() or chr(code) == "_" else 32 for code in range(256))

Bool = npt.NDArray[np.bool_]
UInt64 = npt.NDArray[np.uint64]
Texts = Iterable[str]


def words(text: str) -> list[bytes]:
    """Lower-case words, cut at white space and ASCII punctuation; at least one shingle's worth of them."""
    found = text.lower().encode().translate(SPACED).split()
    return found if len(found) >= NGRAM else found + [b""] * (NGRAM - len(found))


def shingles(text: str) -> list[bytes]:
    """The word 5-grams of a text."""
    found = words(text)
    return list(map(b" ".join, zip(*(found[start:] for start in range(NGRAM)), strict=False)))


def hashed_shingles(texts: Texts) -> tuple[UInt64, UInt64]:
    """64-bit hashes of all texts' 5-grams end to end, and where each text's begin.

    Python's own hash for each word, which is the fastest there is; numpy for each shingle.
    """
    hashes, counts = array("q"), []
    for text in texts:
        found = words(text)
        counts.append(len(found))
        hashes.extend(map(hash, found))
    word = np.frombuffer(hashes, np.int64).view(np.uint64)
    gram = word[: 1 - NGRAM].copy()
    for start in range(1, NGRAM):
        gram *= np.uint64(0x9E3779B97F4A7C15)
        gram += word[start : len(word) - NGRAM + 1 + start]
    gram ^= gram >> np.uint64(32)
    gram *= np.uint64(0xD6E8FEB86659FD93)
    gram ^= gram >> np.uint64(29)
    ends = np.cumsum(counts)
    within = np.ones(len(gram), np.bool_)
    for back in range(1, NGRAM):
        within[ends[:-1] - back] = False
    starts = np.concatenate(([0], np.cumsum(np.array(counts) - NGRAM + 1))).astype(np.uint64)
    return gram[within], starts


def hashed_shards(tables: list[pa.Table]) -> tuple[UInt64, UInt64]:
    """The same of all shards, one shard's temporaries in memory at a time."""
    parts = [hashed_shingles(table["text"].to_pylist()) for table in tables if table.num_rows]
    begins = np.cumsum([0, *(len(values) for values, _ in parts)]).astype(np.uint64)
    starts = [starts[:-1] + begin for (_, starts), begin in zip(parts, begins, strict=False)]
    return np.concatenate([values for values, _ in parts]), np.concatenate([*starts, begins[-1:]])


def all_texts(tables: list[pa.Table]) -> Iterator[str]:
    """Texts shard by shard."""
    return (text for table in tables for text in table["text"].to_pylist())


def datasketch(tables: list[pa.Table]) -> Bool:
    """`update_batch` over the shingles as bytes, hashed by xxhash."""
    from datasketch import MinHash
    from xxhash import xxh32_intdigest

    def sketches() -> Iterator[Any]:
        for text in all_texts(tables):
            sketch = MinHash(num_perm=BANDS * ROWS, scheme="affine32", hashfunc=xxh32_intdigest)
            sketch.update_batch(shingles(text))
            yield sketch

    return _by_datasketch(sketches())


def datasketch_prehashed(tables: list[pa.Table]) -> Bool:
    """`MinHash.generator` over hashes made by numpy: `int` is the cheapest hashfunc."""
    from datasketch import MinHash

    def sketches() -> Iterator[Any]:
        for table in tables:
            if not table.num_rows:
                continue
            values, starts = hashed_shingles(table["text"].to_pylist())
            low = (values >> np.uint64(32)).astype(np.uint32)
            sets = (low[start:end].tolist() for start, end in itertools.pairwise(starts.tolist()))
            yield from MinHash.generator(sets, num_perm=BANDS * ROWS, scheme="affine32", hashfunc=int)

    return _by_datasketch(sketches())


def _by_datasketch(sketches: Iterator[Any]) -> Bool:
    from datasketch import MinHashLSH

    index = MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS))
    kept: dict[int, Any] = {}
    row = 0
    for row, sketch in enumerate(sketches):
        if all(sketch.jaccard(kept[key]) < THRESHOLD for key in index.query(sketch)):
            index.insert(row, sketch, check_duplication=False)
            kept[row] = sketch
    return _mask(row + 1, kept)


def gaoya(tables: list[pa.Table]) -> Bool:
    """Tokenized and hashed in Rust. A text that is kept is hashed twice: Python can't hand it a signature again."""
    from gaoya.minhash import MinHashStringIndex

    index = MinHashStringIndex(32, THRESHOLD, BANDS, ROWS, None, "word", True, (NGRAM, NGRAM), "smallvec")
    kept = []
    for row, text in enumerate(all_texts(tables)):
        unique = not index.query(text)
        if unique:
            index.insert_document(row, text)
        kept.append(unique)
    return np.array(kept)


def rensa(tables: list[pa.Table]) -> Bool:
    """Its deduplicator over string shingles, as its README has it."""
    from rensa import RMinHashDeduplicator

    index = RMinHashDeduplicator(THRESHOLD, BANDS_POWER * ROWS, True, BANDS_POWER, SEED)
    pairs = ((str(row), shingles(text)) for row, text in enumerate(all_texts(tables)))
    return np.array(index.add_pairs(pairs))


def rensa_prehashed(tables: list[pa.Table]) -> Bool:
    """One matrix from flat hashes, one pass over its bands; its deduplicator then sees the rows that share a band."""
    from rensa import RMinHash, RMinHashDeduplicator, RMinHashLSH

    size = BANDS_POWER * ROWS
    values, starts = hashed_shards(tables)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(values, starts, size, SEED)
    flags = RMinHashLSH(THRESHOLD, size, BANDS_POWER).query_duplicate_flags_matrix_one_shot(matrix)
    kept = ~np.array(flags, np.bool_)
    index = RMinHashDeduplicator(THRESHOLD, size, True, BANDS_POWER, SEED)
    rows, tokens = np.flatnonzero(~kept).tolist(), values.view("S8")
    places = starts.tolist()
    kept[~kept] = index.add_pairs((str(row), tokens[places[row] : places[row + 1]].tolist()) for row in rows)
    return kept


def fastsketchlsh(tables: list[pa.Table]) -> Bool:
    """CSR sketches of hashes, its fused insert and query, then candidates of the flagged rows alone."""
    from FastSketchLSH import LSH, FastSimilaritySketch

    size = BANDS_POWER * ROWS
    values, starts = hashed_shards(tables)
    matrix = FastSimilaritySketch(size=size, seed=SEED).batch_csr(values, starts, prehashed=True, num_threads=1)
    index = LSH(num_perm=size, num_bands=BANDS_POWER, num_threads=1)
    kept: Bool = index.insert_and_query_duplicates(matrix) == 0
    rows = np.flatnonzero(~kept)
    candidates, places = index.query(matrix[rows], format="csr")
    for number, row in enumerate(rows):
        near = np.asarray(candidates[places[number] : places[number + 1]], np.int64)
        near = near[near < row]
        near = near[kept[near]]
        kept[row] = not len(near) or (matrix[near] == matrix[row]).mean(axis=1).max() < THRESHOLD
    return kept


def datatrove(source: Path, out: Path, *, plain: bool = False) -> tuple[int, int]:
    """Its four steps with its defaults; called one after the other in this process, without an executor's helpers. With
    `plain`, words are cut at white space instead of by spaCy."""
    from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.writers import ParquetWriter
    from datatrove.utils.logging import logger

    logger.remove()
    config = MinhashConfig()
    words = {"language": _plain_words()} if plain else {}
    with tempfile.TemporaryDirectory() as folder:
        signatures, pairs, removed = f"{folder}/signatures", f"{folder}/buckets", f"{folder}/removed"
        read = functools.partial(ParquetReader, str(source), glob_pattern="*.parquet")
        MinhashDedupSignature(signatures, config, **words).run(read(read_metadata=False).run(None, 0, 1), 0, 1)
        for bucket in range(config.num_buckets):
            step = MinhashDedupBuckets(signatures, pairs, config=config, lines_to_buffer=-1)
            step.run(None, bucket, config.num_buckets)
        MinhashDedupCluster(pairs, removed, config, lines_to_buffer=-1).run(None, 0, 1)
        keep = MinhashDedupFilter(removed).run(read(adapter=_from_row).run(None, 0, 1), 0, 1)
        schema = pa.schema([(name, pa.string()) for name in ("id", "text", "source", "metadata")])
        write = ParquetWriter(str(out), compression="zstd", adapter=_to_row, schema=schema)
        kept = sum(1 for _ in write.run(keep, 0, 1))
    return sum(pq.read_metadata(path).num_rows for path in source.glob("*.parquet")), kept


def _plain_words() -> Any:
    """A word tokenizer of datatrove's kind that splits at white space; the text it gets has no punctuation left."""
    from datatrove.utils.word_tokenizers import WordTokenizer

    methods = {"word_tokenize": lambda _, text: text.split(), "sent_tokenize": None, "span_tokenize": None}
    return type("PlainWords", (WordTokenizer,), methods)()


def in_memory(decide: Callable[[list[pa.Table]], Bool], source: Path, out: Path) -> tuple[int, int]:
    """Read all shards, ask which documents stay, write those: the caller's work for tools that are libraries."""
    paths = sorted(source.glob("*.parquet"))
    tables = [pq.read_table(path, use_threads=False) for path in paths]
    kept = decide(tables)
    start = 0
    for path, table in zip(paths, tables, strict=True):
        chosen = table.filter(pa.array(kept[start : start + table.num_rows]))
        pq.write_table(chosen, out / path.name, compression="zstd", compression_level=1)
        start += table.num_rows
    return len(kept), int(kept.sum())


def _from_row(reader: Any, row: dict[str, str], path: str, number: int | str) -> dict[str, Any]:
    """A row as datatrove has it. Its own adapter would unpack our metadata, which has other keys in each document."""
    return {"text": row["text"], "id": row["id"], "metadata": {"source": row["source"], "metadata": row["metadata"]}}


def _to_row(writer: Any, document: Any) -> dict[str, str]:
    return {"id": document.id, "text": document.text, **document.metadata}


def _mask(length: int, kept: Iterable[int]) -> Bool:
    mask = np.zeros(length, np.bool_)
    mask[list(kept)] = True
    return mask


TOOLS: dict[str, Callable[[Path, Path], tuple[int, int]]] = {
    "datatrove": datatrove,
    "datatrove-plain": functools.partial(datatrove, plain=True),
    "datasketch": functools.partial(in_memory, datasketch),
    "datasketch-prehashed": functools.partial(in_memory, datasketch_prehashed),
    "gaoya": functools.partial(in_memory, gaoya),
    "rensa": functools.partial(in_memory, rensa),
    "rensa-prehashed": functools.partial(in_memory, rensa_prehashed),
    "fastsketchlsh": functools.partial(in_memory, fastsketchlsh),
}

if __name__ == "__main__":
    output = Path(sys.argv[3])
    output.mkdir(parents=True, exist_ok=True)
    documents, remaining = TOOLS[sys.argv[1]](Path(sys.argv[2]), output)
    print(json.dumps({"documents": documents, "kept": remaining}))
