"""Scanning texts by the kernels: UTF-8 directly from an Arrow column, into buffers that are reused.

Normalisation is Unicode NFC and, if the caller asks for it, case folding and collapsing white space. Words are runs of
letters, digits and underscores (`\\w`), so two editions that differ in their quotation marks have the same shingles. In
scripts without spaces such a run is a clause, so `part_unspaced` makes each letter a word. With `ignore_invisible`,
soft hyphens and zero-width characters are left out.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.shards.arrays import AnyArray, Bool, Int64, UInt8, UInt64, as_arrow
from tasks.text import kernels
from tasks.text.block_kernels import BLOCK
from tasks.text.characters import ALL, INVISIBLE, SIZE, characters

MARKS, JOINER = 30, "\u034f"
FIRST_OF_MARKS = 0xCC  # the least first byte of a combining mark, U+0300 and above
PORTION = 1 << 19  # bytes of text scanned at once (at least one document): the buffers fit into the CPU cache


class Scanned(NamedTuple):
    """D normalised texts, as views into the scanner's buffers that are valid until the next batch.

    Text d is `text[text_ends[d - 1]:text_ends[d]]`, its word hashes `words[word_ends[d - 1]:word_ends[d]]`; `rows` are
    the texts' indices in the batch.
    """

    rows: Int64
    text: UInt8
    text_ends: Int64
    words: UInt64
    word_ends: Int64


class Scanner:
    """Scans batches of texts. Without `words`, only normalises them. Not thread-safe."""

    def __init__(
        self,
        *,
        ignore_case: bool = True,
        ignore_white_space: bool = True,
        words: bool = True,
        part_unspaced: bool = False,
        ignore_invisible: bool = False,
    ) -> None:
        self.ignore_case = ignore_case
        self.words = words
        self.tables = characters(ignore_case, ignore_white_space, part_unspaced, ignore_invisible)
        self._left_out = INVISIBLE if ignore_invisible else ""
        self._text = np.empty(0, np.uint8)
        self._words = np.empty(0, np.uint64)

    def scan(self, texts: pa.Array) -> Iterator[Scanned]:
        """The texts of a string column, in parts. Texts that need Python's normalisation appear twice: results from a
        later part replace those from an earlier one."""
        for start, end in _portions(texts):
            scanned, hard = self._scan(texts.slice(start, end - start), np.arange(start, end))
            yield scanned
            if len(hard):
                normal = as_arrow([self.normalise(texts[row].as_py()) for row in hard.tolist()])
                yield self._scan(normal, hard)[0]

    def normalise(self, text: str) -> str:
        """The steps that need Python: NFC and case folding. The kernel handles white space."""
        for character in self._left_out:  # before NFC, which composes characters that they separate
            text = text.replace(character, "")
        if has_long_run(text):
            text = stream_safe(text)
        text = unicodedata.normalize("NFC", text)
        return text.casefold() if self.ignore_case else text

    def _scan(self, texts: pa.Array, rows: Int64) -> tuple[Scanned, Int64]:
        data, offsets = utf8(texts)
        size, documents = int(offsets[-1] - offsets[0]), len(texts)
        self._text = at_least(self._text, size * 3 // 2 + 64)
        self._words = at_least(self._words, size // 2 + documents + 64)
        text_ends, word_ends = (np.empty(documents, np.int64) for _ in range(2))
        hard = np.empty(documents, np.bool_)
        kernels.scan(
            data,
            offsets,
            self.tables.kinds,
            self.tables.folded,
            self._text,
            text_ends,
            self._words if self.words else None,
            word_ends,
            hard,
        )
        return Scanned(rows, self._text, text_ends, self._words, word_ends), rows[hard]


def has_long_run(text: str) -> bool:
    """Whether a run of combining marks is longer than `MARKS`. Most texts have too few characters that might be one."""
    possible = np.count_nonzero(np.frombuffer(text.encode(), np.uint8) >= FIRST_OF_MARKS)
    return bool(possible > MARKS) and longest_run_of_marks(text) > MARKS


def longest_run_of_marks(text: str) -> int:
    """The length of the longest run of combining marks."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    others = np.flatnonzero(~_marks()[np.minimum(codes, SIZE - 1)])
    return int(np.diff(others, prepend=-1, append=len(codes)).max()) - 1


@functools.cache
def _marks() -> Bool:
    found: Bool = np.fromiter(map(unicodedata.combining, ALL), np.uint8, SIZE) != 0
    return found


def stream_safe(text: str) -> str:
    """The text with runs of combining marks broken up after 30 (Unicode's Stream-Safe Text Format, UAX #15, section
    13): NFC sorts a run in quadratic time, and no language uses longer ones."""
    parts: list[str] = []
    run = 0
    for character in text:
        run = run + 1 if unicodedata.combining(character) else 0
        if run > MARKS:
            parts.append(JOINER)
            run = 1
        parts.append(character)
    return "".join(parts)


def _portions(texts: pa.Array) -> Iterator[tuple[int, int]]:
    _, offsets = utf8(texts)
    start = 0
    while start < len(texts):
        end = max(start + 1, int(np.searchsorted(offsets, offsets[start] + PORTION, "right")) - 1)
        yield start, end
        start = end


def at_least(buffer: AnyArray, size: int) -> AnyArray:
    """The buffer, or a new one of the same type if it is too small."""
    return buffer if len(buffer) >= size else np.empty(size, buffer.dtype)


def utf8(texts: pa.Array) -> tuple[UInt8, Int64]:
    """(data, offsets) of a string column without nulls: text i is `data[offsets[i]:offsets[i + 1]]`. Nothing is copied,
    unless the data would be less than a block.

    The only way into compiled code, which trusts its arguments. Raises TypeError for another layout (large strings have
    64-bit offsets, views none at all) and ValueError for nulls.
    """
    if texts.type != pa.string():
        raise TypeError(f"a column of strings is needed, not of {texts.type}")
    if texts.null_count:
        raise ValueError(f"{texts.null_count} of {len(texts)} texts are null")
    _, ends, data = texts.buffers()
    if ends is None:  # an empty array
        return read_only(np.zeros(BLOCK, np.uint8)), np.zeros(1, np.int64)
    offsets = np.frombuffer(ends, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    found = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return read_only(found if len(found) >= BLOCK else np.append(found, np.zeros(BLOCK, np.uint8))), offsets


def read_only(data: UInt8) -> UInt8:
    """A read-only view, as some of Arrow's buffers and all bytes are. If a kernel got both kinds, numba would compile
    it for both."""
    view = data.view()
    view.setflags(write=False)
    return view
