"""The text that the vocabulary is learned from and measured on, selected by the hash of a document's id, so that the
result does not depend on order, shards or workers.

Each document gets a number from its id, its draw. Merges are learned from the documents whose draw is below the share
of their source. Those with the highest draws are measured, up to MEASURED_BYTES: text that was not learned from, unless
the share includes it. At least one document of each source with text is learned from and one is measured. Of a longer
document only the first MEASURED_BYTES characters are measured: `tokenizers` needs 200 bytes of memory per byte of text.
"""

from __future__ import annotations

import hashlib
import heapq
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
from storage.shards.documents import Document, read_batches, read_documents, write_documents
from tasks.shards import map_shards
from tasks.stage.output import Output
from tasks.tokenizer.config import TokenizerConfig
from tasks.tokenizer.patterns import PatternName

if TYPE_CHECKING:
    from tasks.tokenizer.bpe.pretokens import Pieces, Pretokens

MEASURED, PRETOKENS = "measured.parquet", "pretokens.npz"
MEASURED_BYTES = 1_000_000  # per source


class Sample(NamedTuple):
    """The sample's pre-tokens with their counts, and by source: its UTF-8 bytes, the texts to measure, and how many
    bytes of these are also in the sample."""

    pretokens: Pretokens
    bytes: dict[str, int]
    measured: dict[str, list[str]]
    common: dict[str, int]


class Survey(NamedTuple):
    """By source, sorted by name: its UTF-8 bytes, its lowest draw, and the documents to measure, highest draw first."""

    bytes: dict[str, int]
    lowest: dict[str, int]
    measured: dict[str, list[Document]]

    @property
    def texts(self) -> dict[str, list[str]]:
        """The texts to measure, by source."""
        return {source: [document.text for document in documents] for source, documents in self.measured.items()}


def survey(shards: list[Path], out: Output) -> Survey:
    """Read all shards to find the size of each source and what to measure. Raises EmptyOutput if there is no text."""
    sizes: Counter[str] = Counter()
    lowest: dict[str, int] = {}
    highest = _Highest()
    for result in map_shards(_survey, shards, out, "bytes-by-source"):
        sizes.update(result.counts["bytes"])
        for source, number in result.counts["lowest"].items():
            lowest[source] = min(number, lowest.get(source, number))
        for document in read_documents(result.folder / MEASURED):
            highest.add(document)
    if not sizes:
        raise EmptyOutput("There is no text to train a tokenizer on.", "Check the report of `filter`.")
    measured: dict[str, list[Document]] = {source: [] for source in sorted(sizes)}
    for document in highest.documents():
        measured[document.source].append(document)
    return Survey(dict(sorted(sizes.items())), lowest, measured)


def draw_sample(config: TokenizerConfig, shards: list[Path], out: Output, base: Path | None = None) -> Sample:
    """Draw the sample in two passes over the shards: sizes of sources, then pre-tokens of the sample, as the config's
    pattern or the tokenizer of a `base` cuts them. Raises EmptyOutput."""
    from tasks.tokenizer.bpe.pretokens import Pretokens, merge_pretokens
    from tasks.tokenizer.own_pretokens import splitting_of

    found = survey(shards, out)
    shares = {source: min(1.0, config.sample_bytes_per_source / size) for source, size in found.bytes.items()}
    ceilings = {source: max(math.ceil(share * 2.0**64), found.lowest[source] + 1) for source, share in shares.items()}
    common = {
        source: sum(len(document.text.encode()) for document in documents if draw(document.id) < ceilings[source])
        for source, documents in found.measured.items()
    }
    splitting = config.pattern if base is None else splitting_of(base)
    compiled = not isinstance(splitting, Path)
    counted = map_shards(partial(_count, splitting, ceilings), shards, out, "pre-tokens", releases_gil=compiled)
    learned: Counter[str] = Counter()
    for result in counted:
        learned.update(result.counts)
    pretokens = merge_pretokens(Pretokens.load(result.folder / PRETOKENS) for result in counted)
    return Sample(pretokens, {source: learned[source] for source in ceilings}, found.texts, common)


def draw(identity: str) -> int:
    """The number below 2⁶⁴ that a document gets from its id."""
    return int.from_bytes(hashlib.sha256(f"tokenizer {identity}".encode()).digest()[:8])


class _Highest:
    """The documents of each source with the highest draws, as few as reach MEASURED_BYTES."""

    def __init__(self) -> None:
        self._heaps: dict[str, list[tuple[int, Document]]] = {}
        self._bytes: Counter[str] = Counter()

    def add(self, document: Document) -> None:
        """Add a document, truncated if long, and drop documents that are no longer needed."""
        document = document._replace(text=document.text[:MEASURED_BYTES])
        heap = self._heaps.setdefault(document.source, [])
        heapq.heappush(heap, (draw(document.id), document))
        self._bytes[document.source] += len(document.text.encode())
        while self._bytes[document.source] - (last := len(heap[0][1].text.encode())) >= MEASURED_BYTES:
            heapq.heappop(heap)
            self._bytes[document.source] -= last

    def documents(self) -> Iterator[Document]:
        """The documents by source, highest draw first."""
        for _, heap in sorted(self._heaps.items()):
            yield from (document for _, document in sorted(heap, reverse=True))


def _survey(shard: Path, folder: Path) -> dict[str, dict[str, int]]:
    """Bytes and lowest draw of each source that has text; candidates for measuring are written to a file."""
    sizes: Counter[str] = Counter()
    lowest: dict[str, int] = {}
    highest = _Highest()
    for document in read_documents(shard):
        if document.text:
            number, source = draw(document.id), document.source
            sizes[source] += len(document.text.encode())
            lowest[source] = min(number, lowest.get(source, number))
            highest.add(document)
    write_documents(folder / MEASURED, highest.documents())
    return {"bytes": dict(sizes), "lowest": lowest}


def _count(splitting: PatternName | Path, ceilings: dict[str, int], shard: Path, folder: Path) -> dict[str, int]:
    """UTF-8 bytes by source of the documents that draw less than its ceiling; their pre-tokens go to a file."""
    from tasks.tokenizer.bpe.pretokens import count_pretokens
    from tasks.tokenizer.encoder.split import Cut, Splitter
    from tasks.tokenizer.own_pretokens import count_own_pretokens

    sizes: Counter[str] = Counter()

    def texts() -> Iterator[pa.Array]:
        for _, batch in read_batches(shard, ["id", "source", "text"]):
            drawn = zip(batch["id"].to_pylist(), batch["source"].to_pylist(), strict=True)
            chosen = batch.filter(pa.array([draw(id) < ceilings.get(source, 0) for id, source in drawn], pa.bool_()))
            for source, size in zip(
                chosen["source"].to_pylist(), pc.binary_length(chosen["text"]).to_pylist(), strict=True
            ):
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
