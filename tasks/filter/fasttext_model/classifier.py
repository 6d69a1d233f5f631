"""A fastText model that reads texts in their Arrow buffers: sums of n-gram vectors of pieces, then labels or a score.

fastText's vector of a text is the mean of its rows, so a document's vector follows from those of its parts, and one
pass gives both. With two labels only the difference of the two outputs matters, so each row shrinks to one number.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from storage.errors import SourceError
from storage.shards.arrays import Float32, Int32, Int64, UInt8
from tasks.filter.fasttext_model import kernels
from tasks.filter.fasttext_model.file import ModelFile
from tasks.text.block_kernels import BLOCK
from tasks.text.scan import read_only

END = b"</s>"
FASTTEXT = np.empty(0, np.uint8)  # kinds: characters as fastText itself separates them
KEPT_WORDS, KEPT_NUMBERS = 1 << 16, 1 << 20  # at most, by thread


class Sums(NamedTuple):
    """The sum of rows (P, D), the number of rows, and the number of words of P pieces. The end of a line counts as a
    row, not as a word."""

    sums: Float32
    counts: Int64
    words: Int64


class Classifier:
    """A model's rows as the kernel reads them. For `kinds` see `kernels.Tables`. Threads may share it."""

    def __init__(self, model: ModelFile, rows: Float32, kinds: UInt8 = FASTTEXT) -> None:
        self.words = words = model.words
        ngrams = rows[len(words) :]
        held, places = np.empty(0, np.uint64), np.empty(0, np.int32)
        if model.pruned is not None:
            # Rows in the order of their buckets, so that the number of bits before a bucket's is its row
            ngrams = ngrams[model.pruned[model.pruned >= 0]]
            bits = np.packbits(np.pad(model.pruned >= 0, (0, -model.buckets % 64)), bitorder="little")
            held = bits.view("<u8")
            places = np.cumsum([0, *np.bitwise_count(held[:-1])], dtype=np.int32)
        self._threads = threading.local()
        self.tables = kernels.Tables(
            kinds=kinds,
            **word_table(words)._asdict(),
            word_rows=rows[: len(words)].flatten(),
            word_counts=np.ones(len(words), np.int32),
            rows=ngrams.flatten(),
            width=rows.shape[1],
            held=held,
            places=places,
            buckets=model.buckets,
            shortest=model.min_characters,
            longest=model.max_characters,
            word_ngrams=model.word_ngrams,
        )
        if model.max_characters > 0:
            self._add_characters()
        # The contribution of `</s>`, once per piece
        self.end = self.sum(np.empty(0, np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int64))

    def sum(self, data: UInt8, begins: Int64, ends: Int64) -> Sums:
        """The sums of the pieces `data[begins[p]:ends[p]]`, UTF-8 each."""
        pieces, width = len(begins), self.tables.width
        sums, counts, words = (
            np.zeros(pieces * width, np.float32),
            np.empty(pieces, np.int64),
            np.empty(pieces, np.int64),
        )
        data = read_only(data if len(data) >= BLOCK else np.pad(data, (0, BLOCK - len(data))))
        kernels.sum_pieces(*self.tables, *self._kept(), data, begins, ends, sums, counts, words)
        return Sums(sums.reshape(pieces, width), counts, words)

    def _kept(self) -> kernels.Kept:
        """This thread's sums of words. Text repeats them, from one call to the next too."""
        if not hasattr(self._threads, "kept"):
            size = kernels.slot_size(self.tables.width)
            number = min(KEPT_WORDS, 1 << (KEPT_NUMBERS // size).bit_length() - 1)
            # At a cache line's beginning, which NumPy doesn't promise
            memory = np.zeros((number + 1) * size, np.uint64)
            slots = memory[-memory.ctypes.data % 64 // 8 :][: number * size].reshape(number, size)
            self._threads.kept = kernels.Kept(
                slots=slots,
                floats=slots.reshape(-1).view(np.float32),
                recent=np.zeros(self.tables.word_ngrams + 1, np.uint64),
                ahead=np.empty((kernels.AHEAD, 3), np.int64),
            )
        kept: kernels.Kept = self._threads.kept
        return kept

    def _add_characters(self) -> None:
        """Add the rows of their character n-grams to the rows of known words, once."""
        t = self.tables
        for word, text in enumerate(self.words):
            if text != END:
                t.word_counts[word] += kernels.add_characters(
                    t.rows,
                    t.width,
                    t.held,
                    t.places,
                    t.buckets,
                    t.shortest,
                    t.longest,
                    t.letters,
                    t.starts[word],
                    t.starts[word + 1],
                    t.word_rows,
                    word * t.width,
                )


class WordTable(NamedTuple):
    """Words as `word_kernels.find` looks them up (see `kernels.Tables`)."""

    slots: Int32
    letters: UInt8
    starts: Int64


def word_table(words: Sequence[bytes]) -> WordTable:
    """An open-addressing hash table of words, at most half full."""
    slots = np.full(1 << max(4, (2 * len(words)).bit_length()), -1, np.int32)
    for number, word in enumerate(words):
        slot = _hash(word) & (len(slots) - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = number
    letters = np.frombuffer(b"".join(words), np.uint8)
    return WordTable(slots, letters, np.cumsum([0, *map(len, words)], dtype=np.int64))


def _hash(word: bytes) -> int:
    """`word_kernels.step` over a word."""
    value = 2166136261
    for byte in word:
        value = ((value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) & 0xFFFFFFFF
    return value


class LabelTree(NamedTuple):
    """fastText's Huffman tree over L labels: the children of its L − 1 inner nodes (see `kernels.two_likeliest`)."""

    left: Int64
    right: Int64


def label_tree(counts: list[int]) -> LabelTree:
    """The tree of labels with these counts, most frequent first (`HierarchicalSoftmaxLoss::buildTree`)."""
    size = len(counts)
    weights = [*counts, *[10**15] * (size - 1)]
    left, right = np.empty(size - 1, np.int64), np.empty(size - 1, np.int64)
    leaf, node = size - 1, size
    for parent in range(size, 2 * size - 1):
        least = []
        for _ in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                least.append(leaf)
                leaf -= 1
            else:
                least.append(node)
                node += 1
        left[parent - size], right[parent - size] = least
        weights[parent] = weights[least[0]] + weights[least[1]]
    return LabelTree(left, right)


def difference(model: ModelFile, positive: str) -> Float32:
    """The rows of a two-label model reduced to one number each: (R, 1), whose mean is the log-odds of `positive`.

    Raises SourceError for a model with other labels.
    """
    if model.hierarchical or len(model.labels) != 2 or positive not in model.labels:
        raise SourceError(
            f"A model with the labels {', '.join(model.labels)} can't score texts.",
            f"Train one with two labels, one of which is {positive}.",
        )
    at = model.labels.index(positive)
    weights = (model.output[at] - model.output[1 - at]).astype(np.float64)
    return (model.rows.astype(np.float64) @ weights).astype(np.float32)[:, None]
