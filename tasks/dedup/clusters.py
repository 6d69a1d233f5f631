"""Clusters of duplicates, independent of the order of documents.

Edges are pairs of rows, edges × 2, the smaller row first. One process holds all of them: 16 bytes for each edge and for
each document that has one, three times as much while they are sorted.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from storage.shards.arrays import Int64, distinct, find
from tasks.dedup.near_duplicates import compare_kernels

WAITING = 1 << 16  # edges that are collected before they are joined with the others


def unique_edges(parts: Iterable[Int64]) -> Int64:
    """All edges without repetitions, ascending. Rows must be below 2³². The parts, of which most may hold the same
    edges, are taken one after the other."""
    found, waiting, size = np.empty(0, np.int64), list[Int64](), 0
    for part in parts:
        waiting.append((part.min(axis=1) << 32) | part.max(axis=1) if len(part) else found[:0])
        size += len(part)
        if size > max(len(found), WAITING):
            found, waiting, size = distinct(np.concatenate([found, *waiting])), [], 0
    found = distinct(np.concatenate([found, *waiting]))
    return np.stack((found >> 32, found & 0xFFFFFFFF), axis=1)


class Components:
    """Connected components of the graph of edges."""

    def __init__(self, edges: Int64) -> None:
        self.rows, places = np.unique(edges, return_inverse=True)
        self._labels = np.arange(len(self.rows))
        compare_kernels.connect(places.reshape(-1, 2), self._labels)

    def labels(self, rows: Int64) -> Int64:
        """The component number of each row. A row without edges is its own component, with a negative number."""
        place, known = find(rows, self.rows)
        labels = -1 - rows
        labels[known] = self._labels[place[known]]
        return labels
