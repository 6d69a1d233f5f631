"""Pre-tokens of a column of texts, directly from its Arrow buffer, in portions that fit into the CPU cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Int64, UInt8, UInt64
from tasks.text.scan import at_least, utf8
from tasks.tokenizer.encoder import kernels
from tasks.tokenizer.encoder.characters import character_classes
from tasks.tokenizer.patterns import PatternName

PORTION = 1 << 19  # bytes of text at once (at least one document)
SPARE = 16  # bytes that the kernels may read beyond the end of a text


class Cut(NamedTuple):
    """D texts and their pre-tokens, as views into the splitter's buffers that are valid until the next portion.

    Text d is `data[offsets[d]:offsets[d + 1]]`; pre-token p ends at `ends[p]` and starts where the previous one ends;
    `documents[d]` is the number of pre-tokens up to the end of text d. `words[i]` are the 8 bytes of `data` from i on.
    """

    data: UInt8
    words: UInt64
    offsets: Int64
    ends: Int64
    documents: Int64


class Splitter:
    """Splits columns of texts into pre-tokens by a pattern. Not thread-safe."""

    def __init__(self, pattern: PatternName) -> None:
        self.pattern = pattern
        self._classes = character_classes()
        self._data = np.zeros(SPARE, np.uint8)
        self._ends = np.empty(0, np.int64)

    def split(self, texts: pa.Array) -> Iterator[Cut]:
        """Split a string column without nulls, in order, in portions."""
        source, offsets = utf8(texts)
        first = 0
        while first < len(texts):
            after = max(first + 1, int(np.searchsorted(offsets, offsets[first] + PORTION, "right")) - 1)
            begin, end = int(offsets[first]), int(offsets[after])
            size = end - begin
            self._data = at_least(self._data, size + SPARE)
            self._data[:size] = source[begin:end]
            self._ends = at_least(self._ends, size)
            places = offsets[first : after + 1] - begin
            documents = np.empty(after - first, np.int64)
            words = np.ndarray((len(self._data) - 7,), "<u8", self._data, strides=(1,))  # they overlap
            count = kernels.split(
                self._data, words, places, self._classes, self.pattern == "gpt2", self._ends, documents
            )
            yield Cut(self._data, words, places, self._ends[:count], documents)
            first = after
