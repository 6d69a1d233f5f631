"""The text that the vocabulary is learned from and measured on, selected by the hash of a document's id, so that the
result does not depend on order, shards or workers.

Each document gets a number from its id, its draw. Merges are learned from the documents whose draw is below the share
of their source. Those with the highest draws are measured, up to MEASURED_BYTES: text that was not learned from, unless
the share includes it. At least one document of each source with text is learned from and one is measured. Of a longer
document only the first MEASURED_BYTES characters are measured: `tokenizers` needs 200 bytes of memory per byte of text.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import EmptyOutput
from storage.shards.arrays import UInt64
from storage.shards.documents import BatchWriter, Document, read_batches, read_documents, write_batches
from tasks.shards import ShardResult, map_shards
from tasks.stage.output import Output
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.patterns import PatternName

if TYPE_CHECKING:
    from tasks.tokenizer.bpe.pretokens import Pieces, Pretokens

HIGHEST, MEASURED, PRETOKENS = "highest.npy", "measured.parquet", "pretokens.npz"
MEASURED_BYTES = 1_000_000  # per source


class Sample(NamedTuple):
    """The sample's pre-tokens with their counts, and by source: its UTF-8 bytes, the texts to measure, and how many
    bytes of these are also in the sample."""

    pretokens: Pretokens
    bytes: dict[str, int]
    measured: dict[str, list[str]]
    common: dict[str, int]


class Survey(NamedTuple):
    """By source, sorted by name: its UTF-8 bytes, its lowest draw, and the lowest draw of those to measure."""

    bytes: dict[str, int]
    lowest: dict[str, int]
    floors: dict[str, int]


def survey(shards: list[Path], out: Output) -> Survey:
    """Read all shards to find the size of each source and what to measure. Raises EmptyOutput if there is no text."""
    sizes: Counter[str] = Counter()
    lowest: dict[str, int] = {}
    highest: dict[str, UInt64] = {}
    for result in map_shards(_survey, shards, out, "sizes-by-source"):
        sizes.update(result.counts["bytes"])
        for source, number in result.counts["lowest"].items():
            lowest[source] = min(number, lowest.get(source, number))
        rows, end = np.load(result.folder / HIGHEST), 0
        for source, count in result.counts["highest"].items():
            start, end = end, end + count
            highest[source] = _highest(np.concatenate([highest.get(source, rows[:0]), rows[start:end]]))
    if not sizes:
        raise EmptyOutput("There is no text to train a tokenizer on.", "Check the report of `filter`.")
    floors = {source: int(rows[-1, 0]) for source, rows in highest.items()}
    return Survey(*(dict(sorted(by_source.items())) for by_source in (sizes, lowest, floors)))


def texts_to_measure(shards: list[Path], out: Output) -> dict[str, list[str]]:
    """The texts to measure, by source, for a tokenizer that isn't learned here. Raises EmptyOutput."""
    floors = survey(shards, out).floors
    return _texts(_to_measure(map_shards(partial(_copy_measured, floors), shards, out, "to-measure")))


def draw_sample(config: TokenizerConfig, shards: list[Path], out: Output, base: Path | None = None) -> Sample:
    """Draw the sample in two passes over the shards: sizes of sources, then pre-tokens of the sample, as the config's
    pattern or the tokenizer of a `base` cuts them, and the texts to measure. Raises EmptyOutput."""
    from tasks.tokenizer.bpe.pretokens import Pretokens, merge_pretokens
    from tasks.tokenizer.own_pretokens import splitting_of

    found = survey(shards, out)
    shares = {source: min(1.0, config.sample_bytes_per_source / size) for source, size in found.bytes.items()}
    ceilings = {source: max(math.ceil(share * 2.0**64), found.lowest[source] + 1) for source, share in shares.items()}
    splitting = config.pattern if base is None else splitting_of(base)
    compiled = not isinstance(splitting, Path)
    count = partial(_count, splitting, ceilings, found.floors)
    counted = map_shards(count, shards, out, "sample", releases_gil=compiled)
    learned: Counter[str] = Counter()
    for result in counted:
        learned.update(result.counts)
    pretokens = merge_pretokens(Pretokens.load(result.folder / PRETOKENS) for result in counted)
    measured = _to_measure(counted)
    common = {
        source: sum(len(document.text.encode()) for document in documents if draw(document.id) < ceilings[source])
        for source, documents in measured.items()
    }
    return Sample(pretokens, {source: learned[source] for source in ceilings}, _texts(measured), common)


def draw(identity: str) -> int:
    """The number below 2⁶⁴ that a document gets from its id."""
    return int.from_bytes(hashlib.sha256(f"tokenizer {identity}".encode()).digest()[:8])


def _to_measure(results: list[ShardResult]) -> dict[str, list[Document]]:
    """The documents to measure by source, highest draw first, each truncated if long."""
    found: dict[str, list[Document]] = {}
    for result in results:
        for document in read_documents(result.folder / MEASURED):
            found.setdefault(document.source, []).append(document._replace(text=document.text[:MEASURED_BYTES]))
    measured = {}
    for source, documents in sorted(found.items()):
        documents.sort(key=lambda document: draw(document.id), reverse=True)
        rows = [(draw(document.id), len(document.text.encode())) for document in documents]
        measured[source] = documents[: len(_highest(np.array(rows, np.uint64)))]
    return measured


def _texts(measured: dict[str, list[Document]]) -> dict[str, list[str]]:
    return {source: [document.text for document in documents] for source, documents in measured.items()}


def _highest(rows: UInt64) -> UInt64:
    """Of the rows (draw, bytes of a document) those with the highest draws, highest first, as few as reach
    MEASURED_BYTES."""
    ordered = rows[np.argsort(rows[:, 0])[::-1]]
    return ordered[: np.searchsorted(np.cumsum(ordered[:, 1]), MEASURED_BYTES) + 1]


def _survey(shard: Path, folder: Path) -> dict[str, dict[str, int]]:
    """Bytes and lowest draw of each source that has text, and how many rows of a file are its highest draws."""
    found: dict[str, list[tuple[int, int]]] = {}
    for _, batch in read_batches(shard, ["id", "source", "text"]):
        sizes = pc.binary_length(batch["text"]).to_pylist()
        for identity, source, size in zip(batch["id"].to_pylist(), batch["source"].to_pylist(), sizes, strict=True):
            if size:
                found.setdefault(source, []).append((draw(identity), size))
    rows = {source: np.array(drawn, np.uint64) for source, drawn in found.items()}
    highest = {source: _highest(drawn) for source, drawn in rows.items()}
    np.save(folder / HIGHEST, np.concatenate([np.empty((0, 2), np.uint64), *highest.values()]))
    return {
        "bytes": {source: int(drawn[:, 1].sum()) for source, drawn in rows.items()},
        "lowest": {source: int(drawn[:, 0].min()) for source, drawn in rows.items()},
        "highest": {source: len(drawn) for source, drawn in highest.items()},
    }


def _copy_measured(floors: dict[str, int], shard: Path, folder: Path) -> dict[str, int]:
    """Write the documents to measure to a file."""
    batches = (batch for _, batch in read_batches(shard))
    write_batches(folder / MEASURED, (_above(floors, batch, _draws(batch)) for batch in batches))
    return {}


def _draws(batch: pa.RecordBatch) -> list[int]:
    return [draw(identity) for identity in batch["id"].to_pylist()]


def _above(floors: dict[str, int], batch: pa.RecordBatch, draws: list[int]) -> pa.RecordBatch:
    """The documents with text whose draw is at least the floor of their source."""
    rows = zip(draws, batch["source"].to_pylist(), pc.binary_length(batch["text"]).to_pylist(), strict=True)
    return batch.filter(pa.array([size > 0 and drawn >= floors[source] for drawn, source, size in rows], pa.bool_()))


def _count(
    splitting: PatternName | Path, ceilings: dict[str, int], floors: dict[str, int], shard: Path, folder: Path
) -> dict[str, int]:
    """UTF-8 bytes by source of the documents that draw less than its ceiling. Their pre-tokens go to a file, and the
    documents to measure to another."""
    from tasks.tokenizer.bpe.pretokens import count_pretokens
    from tasks.tokenizer.encoder.split import Cut, Splitter
    from tasks.tokenizer.own_pretokens import count_own_pretokens

    sizes: Counter[str] = Counter()

    def texts() -> Iterator[pa.Array]:
        with BatchWriter(folder / MEASURED) as measured:
            for _, batch in read_batches(shard):
                draws = _draws(batch)
                measured.add(_above(floors, batch, draws))
                drawn = zip(draws, batch["source"].to_pylist(), strict=True)
                chosen = batch.filter(pa.array([own < ceilings.get(source, 0) for own, source in drawn], pa.bool_()))
                counted = zip(chosen["source"].to_pylist(), pc.binary_length(chosen["text"]).to_pylist(), strict=True)
                for source, size in counted:
                    sizes[source] += size
                yield chosen["text"]

    def pieces(cut: Cut) -> Pieces:
        return cut.data, np.concatenate([np.zeros(1, np.int64), cut.ends])[:-1], cut.ends

    if isinstance(splitting, Path):
        count_own_pretokens(splitting, texts()).save(folder / PRETOKENS)
        return dict(sizes)
    splitter = Splitter(splitting)
    count_pretokens(pieces, (cut for column in texts() for cut in splitter.split(column))).save(folder / PRETOKENS)
    return dict(sizes)
