"""Which documents are one: exact groups, then connected components over verified pairs, and the member that is kept.

Every rule speaks of contents, never of positions, so the same documents are removed whatever the order of the shards.
Kept is the longest text, of equals the one from the earliest source, of equals the one with the smallest id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.errors import ConfigError
from tasks.dedup.bands import candidate_pairs
from tasks.dedup.config import DedupConfig
from tasks.dedup.corpus import Corpus

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Decision:
    """For each of N documents: the row that is kept in its place (its own for a kept one), whether the two are exact
    duplicates, and their Jaccard. `candidates` and `verified` count pairs."""

    keeper: Rows
    exact: npt.NDArray[np.bool_]
    jaccard: npt.NDArray[np.float64]
    candidates: int
    verified: int


def decide(corpus: Corpus, config: DedupConfig, bands: int, rows: int) -> Decision:
    """Find the duplicates. Jaccard is that with the kept document: a member that is linked to it only through others
    (a chain) can show a value below `similarity`."""
    preference = _preference(corpus, config.source_order)
    representative = _best_of_groups(_exact_groups(corpus.hashes), preference)
    unique = np.flatnonzero(representative == np.arange(len(corpus)))
    # a document without a word has no shingle: it has exact duplicates only
    compared = unique[corpus.shingle_count()[unique] > 0]
    compared = compared[np.argsort(corpus.ids[compared], kind="stable")]
    pairs = candidate_pairs(corpus.signatures_NP[compared], bands, rows, config.bucket_window)
    components, verified = connect(corpus, compared, pairs, config.similarity)

    near_keeper = np.arange(len(corpus))
    near_keeper[compared] = compared[_best_of_groups(components, preference[compared])]
    keeper = near_keeper[representative]
    jaccard = np.ones(len(corpus))
    for row in compared[near_keeper[compared] != compared]:
        jaccard[row] = corpus.jaccard(int(row), int(near_keeper[row]))
    return Decision(keeper, keeper == representative, jaccard[representative], len(pairs), verified)


def connect(
    corpus: Corpus, compared: Rows, pairs: npt.NDArray[np.int64], similarity: float
) -> tuple[Rows, int]:
    """Connected components over the pairs whose exact Jaccard reaches `similarity`: a label for each compared
    document, and the number of pairs that joined two components."""
    sizes = corpus.shingle_count()[compared]
    left, right = sizes[pairs[:, 0]], sizes[pairs[:, 1]]
    # |A ∩ B| / |A ∪ B| is at most the smaller size over the larger
    possible = np.minimum(left, right) >= similarity * np.maximum(left, right)
    parent = list(range(len(compared)))
    verified = 0
    for i, j in pairs[possible].tolist():
        a, b = _root(parent, i), _root(parent, j)
        # an edge within a component would not change it, so it is not worth a comparison
        if a != b and corpus.jaccard(int(compared[i]), int(compared[j])) >= similarity:
            parent[max(a, b)] = min(a, b)
            verified += 1
    return np.array([_root(parent, i) for i in range(len(parent))], dtype=np.int64), verified


def _root(parent: list[int], i: int) -> int:
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


def _exact_groups(hashes: npt.NDArray[np.uint64]) -> Rows:
    """A label for each document, the same for equal hashes."""
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    ordered = hashes[order]
    labels = np.zeros(len(hashes), np.int64)
    labels[order[1:]] = np.cumsum((ordered[1:] != ordered[:-1]).any(axis=1))
    return labels


def _best_of_groups(labels: Rows, preference: Rows) -> Rows:
    """For each member, the index of the most preferred member of its group."""
    order = np.argsort(preference)
    _, first, group = np.unique(labels[order], return_index=True, return_inverse=True)
    best = np.empty(len(labels), np.int64)
    best[order] = order[first[group]]
    return best


def _preference(corpus: Corpus, source_order: Sequence[str]) -> Rows:
    """A document's place in the order of preference: 0 is kept before all others."""
    names = np.unique(corpus.sources).tolist()
    unknown = sorted(set(source_order) - set(names))
    if unknown:
        raise ConfigError(
            f"dedup.source_order names {', '.join(unknown)}, which no document comes from.",
            f"The sources are {', '.join(names)}.",
        )
    rank = {name: i for i, name in enumerate([*source_order, *(n for n in names if n not in source_order)])}
    source_ranks = np.array([rank[name] for name in corpus.sources.tolist()], dtype=np.int64)
    order = np.lexsort((corpus.ids, source_ranks, -corpus.lengths))
    preference = np.empty(len(corpus), np.int64)
    preference[order] = np.arange(len(corpus))
    return preference
