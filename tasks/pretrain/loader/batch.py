"""A batch as the loader serves it, and its variants: shorter rows, isolated documents, ignored targets.

Shapes: B rows, T tokens of context.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.kernels.cross_entropy import IGNORED
from storage.shards.arrays import Int64


class Batch(NamedTuple):
    """Inputs and the token after each, both (B, T). With isolated documents, `positions` (B, T) counts from the first
    token of each document, or of its part in the row: another document begins at each zero."""

    ids: Int64
    targets: Int64
    positions: Int64 | None = None


def shorten(batch: Batch, parts: int) -> Batch:
    """Each row cut into `parts` rows, (B × parts, T ÷ parts): the same tokens, less context."""
    shape = (len(batch.ids) * parts, batch.ids.shape[1] // parts)
    return Batch(batch.ids.reshape(shape), batch.targets.reshape(shape))


def mask(batch: Batch) -> Batch:
    """Decode rows in which `~id` stands for a token without loss: plain ids, and IGNORED targets."""
    ids, targets = batch.ids, batch.targets
    return Batch(np.where(ids < 0, ~ids, ids), np.where(targets < 0, IGNORED, targets))


def isolate(batch: Batch, eos_id: int) -> Batch:
    """Isolate documents: positions restart after each `eos_id`, and there is no loss where the next token belongs to
    another document.

    Only the pipeline writes that id, at the end of a document, so the ids alone tell the boundaries.
    """
    ends = batch.ids == eos_id
    column = np.arange(batch.ids.shape[1])
    begun = np.zeros_like(batch.ids)
    begun[:, 1:] = np.where(ends[:, :-1], column[1:], 0)
    positions = column - np.maximum.accumulate(begun, axis=1)
    return Batch(batch.ids, np.where(ends, IGNORED, batch.targets), positions)
