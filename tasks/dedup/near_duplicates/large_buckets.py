"""Buckets too large for all pairs, such as boilerplate in thousands of documents, in linear time.

Clusters are connected components, so only an edge between two components adds information. A leader is compared with
all members of other components, and those that are verified join its component: a bucket of near-identical documents is
one component after a single leader. Then each member that is still separate is compared with the other components, and
its most likely partner is verified. Only verified edges count, so two pairs that merely share a bucket stay separate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from storage.shards.arrays import Int64, UInt32, UInt64, distinct
from tasks.dedup.clusters import Components, unique_edges
from tasks.dedup.near_duplicates import compare_kernels
from tasks.dedup.near_duplicates.candidates import Candidates
from tasks.dedup.near_duplicates.verify import Shingles

LEADERS = 16  # at most, per bucket
FRUITLESS = 2  # leaders without a verified pair after which no more are tried
CROSSINGS = 4  # rounds in which the remaining components are compared
COMPARISONS = 1 << 24  # per round and bucket: about half a second


class Joined(NamedTuple):
    """Verified edges, the number of pairs checked, and the number of comparisons cut short by the budget."""

    edges: Int64
    candidates: int
    cut_short: int


def join_large_buckets(
    candidates: Candidates, large: list[Int64], components: Components, shingles: Shingles
) -> Joined:
    """Verified edges between documents of large buckets that are in different components."""
    rows = distinct(np.concatenate([np.empty(0, np.int64), *large]))
    labels = Labels(rows, components.labels(rows))
    apart = [members for members in large if labels.differ(members)]
    shingles.take(distinct(np.concatenate([np.empty(0, np.int64), *apart])))
    buckets = LargeBuckets(candidates, shingles)
    for members in apart:
        buckets.join(members, labels)
    return Joined(unique_edges(buckets.edges), buckets.verified, buckets.cut_short)


class Labels:
    """The component of each row, updated as edges are added."""

    def __init__(self, rows: Int64, labels: Int64) -> None:
        self.rows = rows
        self.values = np.unique(labels, return_inverse=True)[1]

    def of(self, rows: Int64) -> Int64:
        """Component numbers."""
        return self.values[np.searchsorted(self.rows, rows)]

    def differ(self, rows: Int64) -> bool:
        """Whether the rows are in more than one component."""
        found = self.of(rows)
        return bool((found != found[0]).any())

    def join(self, edges: Int64) -> None:
        """Merge the components that each edge connects."""
        pairs = self.values[np.searchsorted(self.rows, edges)]
        joined = Components(pairs)
        merged = joined.labels(np.arange(self.values.max() + 1))
        self.values = np.unique(merged[self.values], return_inverse=True)[1]


class LargeBuckets:
    """See the module's docstring."""

    def __init__(self, candidates: Candidates, shingles: Shingles) -> None:
        self.corpus, self.least = candidates.corpus, candidates.least
        self.threshold = candidates.config.threshold
        self.shingles = shingles
        self.edges: list[Int64] = []
        self.verified = 0
        self.cut_short = 0

    def join(self, members: Int64, labels: Labels) -> None:
        """Merge components of one bucket, where exact similarity confirms it."""
        if not labels.differ(members):
            return
        signatures = self.corpus.signatures(members)
        order = np.argsort(_content(signatures), kind="stable")  # by content: independent of the order of documents
        members, signatures = members[order], signatures[order]
        leaders: list[int] = []
        fruitless = 0
        while len(leaders) < LEADERS and fruitless < FRUITLESS:
            found = labels.of(members)
            waiting = np.flatnonzero(~np.isin(found, found[leaders]))
            if not len(waiting):
                break
            leader = int(waiting[0])
            leaders.append(leader)
            others = np.flatnonzero(found != found[leader])
            alike = others[(signatures[others] == signatures[leader]).sum(axis=1) >= self.least]
            pairs = np.stack((np.full(len(alike), members[leader]), members[alike]), axis=1)
            fruitless += not self._verify(pairs, labels)
        for _ in range(CROSSINGS):
            if not self._cross(members, signatures, labels):
                break

    def _cross(self, members: Int64, signatures: UInt32, labels: Labels) -> bool:
        """Verify each member's most likely partner in another component. Returns whether any components were merged."""
        if not labels.differ(members):
            return False
        found = labels.of(members)
        first_of = np.full(found.max() + 1, len(members))
        np.minimum.at(first_of, found, np.arange(len(members)))
        order = np.argsort(first_of[found], kind="stable").astype(np.int32)
        first, second = np.empty(len(members), np.int32), np.empty(len(members), np.int32)
        made, complete = compare_kernels.crossing_pairs(
            order, found[order], signatures, self.least, COMPARISONS, first, second
        )
        self.cut_short += not complete
        return self._verify(np.stack((members[first[:made]], members[second[:made]]), axis=1), labels)

    def _verify(self, pairs: Int64, labels: Labels) -> bool:
        """Merge the pairs that reach the threshold. Returns whether any pair did."""
        pairs = np.sort(pairs, axis=1)
        self.verified += len(pairs)
        good = pairs[self.shingles.similarities(pairs) >= self.threshold]
        if len(good):
            self.edges.append(good)
            labels.join(good)
        return len(good) > 0


def _content(signatures: UInt32) -> UInt64:
    hashes = np.empty(len(signatures), np.uint64)
    compare_kernels.band_keys(signatures, 0, signatures.shape[1], hashes)
    return hashes
