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
    token of each document, or of its part in the row: a document begins at each zero."""

    ids: Int64
    targets: Int64
    positions: Int64 | None = None


def shorten(batch: Batch, parts: int) -> Batch:
    """Cut each row into `parts` rows, (B × parts, T ÷ parts): the same tokens with less context."""
    shape = (len(batch.ids) * parts, batch.ids.shape[1] // parts)
    return Batch(batch.ids.reshape(shape), batch.targets.reshape(shape))


def mask(batch: Batch) -> Batch:
    """Decode rows in which `~id` marks a token without loss: plain ids, and IGNORED targets."""
    ids, targets = batch.ids, batch.targets
    return Batch(np.where(ids < 0, ~ids, ids), np.where(targets < 0, IGNORED, targets))


def isolate(batch: Batch, eos_id: int) -> Batch:
    """Isolate documents: positions restart after each `eos_id`, and a target in another document bears no loss.

    Only the pipeline writes that id, at the end of a document, so the ids are enough to find the boundaries.
    """
    ends = batch.ids == eos_id
    # Each position minus the column at which the last document began: a running maximum of the beginnings
    column = np.arange(batch.ids.shape[1])
    begun = np.zeros_like(batch.ids)
    begun[:, 1:] = np.where(ends[:, :-1], column[1:], 0)
    positions = column - np.maximum.accumulate(begun, axis=1)
    return Batch(batch.ids, np.where(ends, IGNORED, batch.targets), positions)
