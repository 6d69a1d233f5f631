"""Candidates for personal data in a batch of texts. A text without candidates never leaves its Arrow buffer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.filter.pii.fold import fold
from tasks.filter.pii.patterns import kernels
from tasks.filter.pii.patterns.emails import spoken
from tasks.text.scan import utf8

Candidate = tuple[int, int, int]  # kind (see kernels), first character, character after the last


def folded(texts: pa.Array) -> pa.Array:
    """The texts, folded if that may matter to a number."""
    data, offsets = utf8(texts)
    marks = np.zeros(len(texts), np.bool_)
    kernels.foldable(data, offsets, kernels.CLASSES, marks)
    if not marks.any():
        return texts
    mask = pa.array(marks)
    return pc.replace_with_mask(texts, mask, pa.array(map(fold, texts.filter(mask).to_pylist()), pa.string()))


def candidates(texts: pa.Array) -> Iterator[tuple[int, list[Candidate]]]:
    """Yield (row, its candidates by position) for each text with candidates, in the order of the texts."""
    data, offsets = utf8(texts)
    size = int(offsets[-1] - offsets[0])
    # More than enough: pages that aren't written don't take memory
    hits = np.empty((size // 2 + 8, kernels.FIELDS), np.int64)
    count = kernels.scan(data, offsets, kernels.CLASSES, hits)
    rows: dict[int, list[Candidate]] = {}
    for row, kind, start, end in hits[:count].tolist():
        rows.setdefault(row, []).append((kind, start, end))
    for row in np.flatnonzero(pc.match_substring(texts, " dot ", ignore_case=True).to_numpy(zero_copy_only=False)):
        rows.setdefault(int(row), []).extend((kernels.AT, start, end) for start, end in spoken(texts[row].as_py()))
    yield from sorted(rows.items())
