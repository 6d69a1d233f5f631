r"""Texts as they read: without the markup and characters that hide words from a comparison.

Left out are soft hyphens and other zero-width characters, hyphens at the end of a line, HTML tags, footnote marks, and
numbers at the beginning of a line. JSON escapes, entities and `%20`, escaped once or several times, become what they
stand for (`\nWhich` is not a word `nWhich`), and `_` within words becomes a blank. Letters of other widths, of
mathematical alphabets and ligatures become ordinary ones (Unicode NFKC). Most texts have none of this and stay as they
are.
"""

from __future__ import annotations

import functools
import unicodedata
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Int64, UInt8, UInt16
from tasks.filter.contamination import plain_kernels
from tasks.text.characters import SIZE
from tasks.text.scan import utf8

INVISIBLE = {
    chr(code)
    for code in (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10))
}


class Folds(NamedTuple):
    """Replacements of code points: c becomes `pool[ends[of[c] - 1]:ends[of[c]]]` if `of[c]` is above 0."""

    of: UInt16
    ends: Int64
    pool: UInt8


def unwrapped(texts: pa.Array) -> tuple[Int64, pa.Array]:
    """(rows, texts) of a string column's texts in which something is replaced."""
    data, offsets = utf8(texts)
    folds = _folds()
    out = np.empty(int(offsets[-1] - offsets[0]) + 1, np.uint8)
    ends = np.zeros(len(texts) + 1, np.int64)
    plain_kernels.unwrap(data, offsets, folds.of, folds.ends, folds.pool, out, ends[1:])
    rows = np.flatnonzero(np.diff(ends))
    kept = np.concatenate(([0], ends[1:][rows])).astype(np.int32)
    buffers = [None, pa.py_buffer(kept), pa.py_buffer(out[: kept[-1]])]
    return rows, pa.StringArray.from_buffers(len(rows), buffers[1], buffers[2])


def plain(text: str) -> str:
    """One text as it reads."""
    _, replaced = unwrapped(pa.array([text], pa.string()))
    return str(replaced[0]) if len(replaced) else text


@functools.cache
def _folds() -> Folds:
    of = np.zeros(SIZE, np.uint16)
    parts: dict[bytes, int] = {b"": 1}
    for code in range(0x80, SIZE):
        if 0xD800 <= code <= 0xDFFF:
            continue
        text = chr(code)
        fold = _fold(text)
        if fold is not None and len(new := fold.encode()) <= len(text.encode()):
            of[code] = parts.setdefault(new, len(parts) + 1)
    ends = np.cumsum([0, *map(len, parts)])
    return Folds(of, ends, np.frombuffer(b"".join(parts), np.uint8))


def _fold(text: str) -> str | None:
    """The replacement of a character, or None if it stays."""
    if unicodedata.category(text) == "Cf" or text in INVISIBLE:
        return ""
    form = unicodedata.decomposition(text)
    if not form.startswith("<"):
        return None
    new = unicodedata.normalize("NFKC", text)
    if form.startswith("<super>") and new.isdigit():
        return ""  # of a footnote
    return new if new.isalnum() else None
