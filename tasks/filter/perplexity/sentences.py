"""Tokenization for the n-gram model: texts as sentences of hashed words.

A sentence is a line with at least one word, as KenLM reads a corpus and as CCNet scores one (Wenzek et al. 2020). Words
are runs of letters, digits and underscores, case-folded. In scripts without spaces between words, runs are long and
unknown to any model: such text gets a high perplexity.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Int64, UInt64
from tasks.filter.perplexity import kernels
from tasks.text.scan import Scanned, Scanner, utf8

NEWLINE = 10
TEXTS_AT_ONCE = 1024


def read_tokens(texts: pa.Array) -> UInt64:
    """The hashes of the words of all texts, with START before and END after each sentence."""
    parts = [_read_tokens(texts.slice(at, TEXTS_AT_ONCE)) for at in range(0, len(texts), TEXTS_AT_ONCE)]
    return np.concatenate([np.empty(0, np.uint64), *parts])


def split_lines(texts: pa.Array) -> tuple[pa.Array, Int64]:
    """(lines, firsts): all lines of the texts, not copied. Text i has the lines `firsts[i]:firsts[i + 1]`."""
    data, offsets = utf8(texts)
    breaks = offsets[0] + np.flatnonzero(data[offsets[0] : offsets[-1]] == NEWLINE) + 1
    bounds = np.unique(np.concatenate((offsets, breaks)))
    buffers = [pa.py_buffer(bounds.astype(np.int32)), texts.buffers()[2]]
    lines = pa.StringArray.from_buffers(len(bounds) - 1, *buffers)
    return lines, np.searchsorted(bounds, offsets)


def scan_sentences(lines: pa.Array) -> Iterator[tuple[Scanned, Int64]]:
    """Yield scanned lines, each with its number of tokens: its words and an end, or 0 without words."""
    scanner = Scanner()
    for scanned in scanner.scan(lines):
        tokens = np.empty(len(scanned.rows), np.int64)
        kernels.count_tokens(scanned.text, scanned.text_ends, scanned.word_ends, scanner.tables.kinds, tokens)
        yield scanned, tokens


def _read_tokens(texts: pa.Array) -> UInt64:
    lines, _ = split_lines(texts)
    starts, tokens = np.zeros(len(lines), np.int64), np.zeros(len(lines), np.int64)
    parts = [np.empty(0, np.uint64)]
    size = 0
    for scanned, counted in scan_sentences(lines):
        starts[scanned.rows] = size + np.concatenate(([0], scanned.word_ends[:-1]))
        tokens[scanned.rows] = counted
        parts.append(scanned.words[: scanned.word_ends[-1]].copy())
        size += len(parts[-1])
    out = np.empty(int(tokens.sum() + np.count_nonzero(tokens)), np.uint64)
    kernels.sentences(np.concatenate(parts), starts, tokens, out)
    return out
