"""Clusters of duplicates, and which document of each is kept; independent of the order of documents.

Edges are pairs of rows, edges × 2, the smaller row first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from storage.shards.arrays import Int64
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus
from tasks.dedup.keeping.preference import PREFERENCE, for_choice
from tasks.dedup.near_duplicates import compare_kernels


def unique_edges(parts: Sequence[Int64]) -> Int64:
    """All edges without repetitions, ascending. Rows must be below 2³²."""
    edges = np.concatenate([np.empty((0, 2), np.int64), *parts])
    packed = np.unique((edges.min(axis=1) << 32) | edges.max(axis=1))
    return np.stack((packed >> 32, packed & 0xFFFFFFFF), axis=1)


class Components:
    """Connected components of the graph of edges."""

    def __init__(self, edges: Int64) -> None:
        self.rows, places = np.unique(edges, return_inverse=True)
        self._labels = np.arange(len(self.rows))
        compare_kernels.connect(places.reshape(-1, 2), self._labels)

    def labels(self, rows: Int64) -> Int64:
        """The component number of each row; a row without edges is its own component, with a negative number."""
        place = np.searchsorted(self.rows, rows)
        known = place < len(self.rows)
        known[known] = self.rows[place[known]] == rows[known]
        labels = -1 - rows
        labels[known] = self._labels[place[known]]
        return labels


def choose_keepers(config: DedupConfig, corpus: Corpus, components: Components) -> pa.Table:
    """All rows of all components, ascending, with id, source and the row of their component that is kept.

    A document that an earlier dedup kept comes first; then the order of preference.py decides.
    """
    rows = components.rows
    labels = components.labels(rows)
    table = for_choice(config, corpus, rows, labels).append_column("cluster", pa.array(labels))
    ordered = table.sort_by([("cluster", "ascending"), *PREFERENCE])
    clusters = ordered["cluster"].to_numpy()
    _, first, member_of = np.unique(clusters, return_index=True, return_inverse=True)
    ordered = ordered.append_column("keeper", pa.array(ordered["row"].to_numpy()[first][member_of]))
    return ordered.select(["row", "id", "source", "keeper", "cluster"]).sort_by("row")
