"""Encoding columns of texts, by our kernels or by the `tokenizers` library, behind one interface.

Special tokens in a text are text. Each document ends with EOS, and begins with BOS if the tokenizer puts one before
every text. An encoder caches what it has encoded, which makes the
following documents faster but changes no id.

Texts are UTF-8. pyarrow refuses Python strings with lone surrogates, which UTF-8 cannot encode; a column whose bytes
are not UTF-8 (a shard written by something else) is refused by both encoders, since its ids could not be decoded back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from storage.errors import DamagedArtifact
from storage.shards.arrays import Int64, UInt32
from tasks.text.scan import at_least
from tasks.tokenizer.encoder import kernels
from tasks.tokenizer.encoder.split import Splitter
from tasks.tokenizer.encoder.tables import Tables
from tasks.tokenizer.load import load_for_documents, marks_of

FIRST_ROWS, MOST_ROWS = 1 << 16, 1 << 20  # rows of the pre-token cache, at most half of them used; 48 bytes each
POOL, TEXTS = 2, 8  # ids and bytes per row, for entries that do not fit into a row


class Encoded(NamedTuple):
    """The ids of D documents: document d is `ids[ends[d - 1]:ends[d]]`, EOS included."""

    ids: UInt32
    ends: Int64

    def document(self, row: int) -> UInt32:
        """The ids of one document, EOS included."""
        return self.ids[int(self.ends[row - 1]) if row else 0 : int(self.ends[row])]

    @property
    def lengths(self) -> Int64:
        """The number of ids of each document, EOS included."""
        return np.diff(self.ends, prepend=0)


class Encoder(Protocol):
    """Encodes columns of texts."""

    vocab_size: int
    eos_id: int

    def encode(self, texts: pa.Array) -> Encoded:
        """Encode a string column without nulls. Raises DamagedArtifact if it is not UTF-8."""
        ...


class KernelEncoder:
    """Encodes by the kernels. Not thread-safe. Uses up to 48 MB, and 20 bytes per byte of the longest text."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.vocab_size, self.eos_id = tables.vocab_size, tables.eos_id
        self._splitter = Splitter(tables.pattern)
        self._out = np.empty(0, np.uint32)
        self._allot(FIRST_ROWS)

    def encode(self, texts: pa.Array) -> Encoded:
        """See Encoder."""
        _check(texts)
        pieces, ends = [np.empty(0, np.uint32)], [np.empty(0, np.int64)]
        total = 0
        for cut in self._splitter.split(texts):
            documents = len(cut.documents)
            self._out = at_least(self._out, int(cut.offsets[-1]) + documents + kernels.BESIDE)
            out_ends = np.empty(documents, np.int64)
            count = kernels.encode(
                *cut,
                self.tables.symbols,
                self.tables.pairs,
                self.eos_id,
                self._table,
                self._pool,
                self._texts,
                self._used,
                self._out,
                out_ends,
            )
            pieces.append(self._out[:count].copy())
            ends.append(out_ends + total)
            total += count
            if self._used[3]:
                self._grow()
        return Encoded(np.concatenate(pieces), np.concatenate(ends))

    def ids(self, text: str) -> list[int]:
        """The ids of one text, without EOS."""
        found: list[int] = self.encode(pa.array([text], pa.string())).ids[:-1].tolist()
        return found

    def _allot(self, rows: int) -> None:
        self._table = np.zeros((rows, 4), np.uint64)
        self._pool = np.empty(POOL * rows, np.uint32)
        self._texts = np.empty(TEXTS * rows, np.uint8)
        self._used = np.zeros(4, np.int64)

    def _grow(self) -> None:
        """Make the cache four times as large; at the maximum size, clear it instead."""
        rows = len(self._table)
        table, pool, texts, used = self._table, self._pool, self._texts, self._used
        self._allot(min(4 * rows, MOST_ROWS))
        if rows < MOST_ROWS:
            kernels.move(table, self._table)
            self._pool[: len(pool)] = pool
            self._texts[: len(texts)] = texts
            self._used[:3] = used[:3]


class LibraryEncoder:
    """Encodes by the `tokenizers` library, the reference for every other encoder."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = load_for_documents(folder)
        self.vocab_size = max(self._tokenizer.get_vocab().values()) + 1
        self._beginning, self.eos_id = marks_of(folder, self._tokenizer)

    def encode(self, texts: pa.Array) -> Encoded:
        """See Encoder."""
        _check(texts)
        encoded = (self._tokenizer.encode(text, add_special_tokens=False).ids for text in texts.to_pylist())
        arrays = [np.array([*self._beginning, *ids, self.eos_id], np.uint32) for ids in encoded]
        ends = np.cumsum([len(array) for array in arrays], dtype=np.int64)
        return Encoded(np.concatenate([np.empty(0, np.uint32), *arrays]), ends)


def _check(texts: pa.Array) -> None:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DamagedArtifact(
            f"A column of texts is damaged: {error}.",
            "Run `gristmill store verify`, then --refresh the stage that wrote the documents.",
        ) from error


class Encoders:
    """A pool of kernel encoders, each lent to one thread at a time, so that caches are kept from shard to shard."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._idle = [KernelEncoder(tables)]  # one in advance, so that threads do not all build the character classes

    @contextmanager
    def lent(self) -> Iterator[KernelEncoder]:
        """An encoder for the exclusive use of this thread until the block ends."""
        try:
            encoder = self._idle.pop()
        except IndexError:
            encoder = KernelEncoder(self._tables)
        try:
            yield encoder
        finally:
            self._idle.append(encoder)
