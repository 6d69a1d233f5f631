"""fastText's model file (`.bin`, quantized `.ftz`), format 12, as numpy arrays.

The library exposes neither its matrices nor the pruned n-gram index, and predicts one string per call. With the arrays,
a kernel reads texts in their Arrow buffers, and scores a document and its parts in one pass. The file contains only
numbers and strings, nothing executable.

Layout: fastText 0.9.3, `FastText::saveModel`, `Dictionary::save`, `QuantMatrix::save` (Joulin et al. 2016,
FastText.zip).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from storage.errors import SourceError
from storage.shards.arrays import AnyArray, Float32, Int32, UInt8

MAGIC, VERSION = 793712314, 12
SUPERVISED = 3
HIERARCHICAL, SOFTMAX = 1, 3
WORD = 0  # an entry's type. Labels have 1
MOST_BUCKETS = 1 << 27  # 64 times fastText's default: memory is allocated before the file proves that it needs it
MOST_WORDS = 1000  # of an n-gram. 1 to 5 are usual
CENTROIDS = 256  # of a product quantizer, with one-byte codes


class ModelFile(NamedTuple):
    """A supervised model with W words, L labels, width D.

    `rows` (R, D) are words, then n-gram buckets. `output` (L, D) are labels, or the inner nodes of the label tree.
    `pruned` maps a bucket to its row after the words, or is None if every bucket has one.
    """

    words: list[bytes]
    labels: list[str]
    label_counts: list[int]
    word_ngrams: int
    min_characters: int
    max_characters: int
    buckets: int
    hierarchical: bool
    pruned: Int32 | None
    rows: Float32
    output: Float32


def read_model(path: Path) -> ModelFile:
    """Read a supervised model with softmax or hierarchical softmax. Raises SourceError for anything else."""
    reader = _Reader(path)
    if reader.take("ii") != (MAGIC, VERSION):
        raise reader.wrong("is not a fastText model of format 12")
    width, _, _, _, _, word_ngrams, loss, model, buckets, min_n, max_n, _, _ = reader.take("12id")
    if model != SUPERVISED or loss not in (HIERARCHICAL, SOFTMAX):
        raise reader.wrong("is not a classifier with softmax or hierarchical softmax")
    size, _, _, _, pruned_size = reader.take("iiiqq")
    entries = [(reader.string(), *reader.take("qb")) for _ in range(size)]
    words = [word for word, _, kind in entries if kind == WORD]
    labels = [(word, count) for word, count, kind in entries if kind != WORD]
    pruned = None
    if not 0 <= buckets <= MOST_BUCKETS:
        raise reader.wrong(f"has {buckets:,} buckets")
    if not 0 <= word_ngrams <= MOST_WORDS:
        raise reader.wrong(f"has n-grams of {word_ngrams:,} words")
    if pruned_size >= 0:
        pairs = reader.array(np.int32, 2 * pruned_size).reshape(-1, 2)
        places = [(pairs[:, 0], buckets), (pairs[:, 1], pruned_size)]
        if any(len(numbers) and not 0 <= numbers.min() <= numbers.max() < end for numbers, end in places):
            raise reader.wrong("points beyond its own rows")
        pruned = np.full(buckets, -1, np.int32)
        pruned[pairs[:, 0]] = pairs[:, 1]
        if word_ngrams > 1:
            raise reader.wrong("is pruned and has word n-grams, which can't be read")
    (quantized,) = reader.take("?")
    rows = reader.quantized() if quantized else reader.dense()
    (output_quantized,) = reader.take("?")
    output = reader.quantized() if quantized and output_quantized else reader.dense()
    # The kernel doesn't check bounds
    wanted = ((len(words) + (buckets if pruned is None else pruned_size), width), (len(labels), width))
    if (rows.shape, output.shape) != wanted or len(labels) < 2:
        raise reader.wrong("has matrices that don't fit its dictionary")
    if not (np.isfinite(rows).all() and np.isfinite(output).all()):
        raise reader.wrong("contains NaN or infinite numbers")
    return ModelFile(
        words=words,
        labels=[word.decode(errors="replace").removeprefix("__label__") for word, _ in labels],
        label_counts=[count for _, count in labels],
        word_ngrams=word_ngrams,
        min_characters=min_n,
        max_characters=max_n,
        buckets=buckets,
        hierarchical=loss == HIERARCHICAL,
        pruned=pruned,
        rows=rows,
        output=output,
    )


class _Reader:
    """A little-endian file, read sequentially."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path.read_bytes()
        self.at = 0

    def wrong(self, why: str) -> SourceError:
        """The error for a file that is wrong in this way."""
        return SourceError(f"The model {self.path.name} {why}.", "Install its package again, or train it again.")

    def take(self, layout: str) -> tuple[Any, ...]:
        """The next fields, in struct's notation."""
        try:
            fields = struct.unpack_from(f"<{layout}", self.data, self.at)
        except struct.error as error:
            raise self.wrong("ends too early") from error
        self.at += struct.calcsize(f"<{layout}")
        return fields

    def string(self) -> bytes:
        """The next bytes up to a NUL."""
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise self.wrong("ends too early")
        text = self.data[self.at : end]
        self.at = end + 1
        return text

    def array(self, kind: type[np.generic], size: int) -> AnyArray:
        """The next `size` numbers."""
        if size < 0 or self.at + size * np.dtype(kind).itemsize > len(self.data):
            raise self.wrong("ends too early")
        numbers = np.frombuffer(self.data, kind, size, self.at)
        self.at += numbers.nbytes
        return numbers

    def dense(self) -> Float32:
        """An unquantized matrix."""
        height, width = self.take("qq")
        if height < 1 or width < 1:
            raise self.wrong("has an empty matrix")
        return self.array(np.float32, height * width).reshape(height, width)

    def quantized(self) -> Float32:
        """A product-quantized matrix, decoded: the 50,000 rows of lid.176 take 3 MB."""
        normed, height, _, size = self.take("?qqi")
        matrix = self._decode(self.array(np.uint8, size), height)
        if normed:
            matrix = matrix * self._decode(self.array(np.uint8, height), height)
        return matrix

    def _decode(self, codes: UInt8, height: int) -> Float32:
        width, parts, part_width, last_width = self.take("4i")
        centroids = self.array(np.float32, width * CENTROIDS)
        fits = parts > 0 and part_width > 0 and last_width > 0 and part_width * (parts - 1) + last_width == width
        if not fits or height < 0 or len(codes) != height * parts:
            raise self.wrong("has a matrix that doesn't fit its parts")
        codes = codes.reshape(height, parts)
        matrix = np.empty((height, width), np.float32)
        for part in range(parts):
            begin = part * part_width
            size = part_width if part < parts - 1 else last_width
            table = centroids[begin * CENTROIDS : begin * CENTROIDS + CENTROIDS * size].reshape(CENTROIDS, size)
            matrix[:, begin : begin + size] = table[codes[:, part]]
        return matrix
