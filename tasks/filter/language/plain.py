"""The preparation of texts for language identification: see `plain_kernels.py`."""

from __future__ import annotations

import functools
import unicodedata

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Bool, UInt32
from tasks.filter.language import plain_kernels
from tasks.text.block_kernels import BLOCK
from tasks.text.characters import ALL, SIZE, UNSPACED
from tasks.text.scan import utf8


def plain_texts(texts: pa.Array) -> pa.Array:
    """The texts of a string column without addresses and tags, and with lines of capitals in lower case."""
    data, offsets = utf8(texts)
    out = np.empty(int(offsets[-1] - offsets[0]) + BLOCK, np.uint8)
    ends = np.zeros(len(texts) + 1, np.int64)
    plain_kernels.plain(data, offsets, _lowered(), alphabetic(), _ending(), plain_kernels.KINDS, out, ends[1:])
    buffers = pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(out[: ends[-1]])
    return pa.StringArray.from_buffers(len(texts), *buffers)


@functools.cache
def alphabetic() -> Bool:
    """Whether each code point is a letter."""
    return np.fromiter((chr(code).isalpha() for code in range(SIZE)), np.bool_, SIZE)


@functools.cache
def _ending() -> Bool:
    """By code point beyond ASCII, whether an address ends before it: at a sign, or a letter of a script without
    spaces."""
    categories = map(unicodedata.category, ALL)
    ending = np.fromiter((category[0] not in "LMN" for category in categories), np.bool_, SIZE)
    for block in UNSPACED:
        ending[block.start : block.stop] = True
    return ending


@functools.cache
def _lowered() -> UInt32:
    """By code point: the small letter of a capital if it takes as many bytes, 1 for a small letter, 0 for others."""
    lowered = np.zeros(SIZE, np.uint32)
    for text in map(chr, np.flatnonzero(alphabetic()).tolist()):
        if text.islower():
            lowered[ord(text)] = 1
        elif text.isupper() and len(low := text.lower()) == 1 and len(low.encode()) == len(text.encode()):
            lowered[ord(text)] = ord(low)
    return lowered
