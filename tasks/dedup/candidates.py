"""Candidate pairs by banding: two documents that agree in all rows of a band meet in a bucket (Leskovec et al., ch. 3).

The bands come from datasketch's optimiser, which weighs false positives against false negatives at the threshold. A
bucket of up to `bucket_pairs` members gives all its pairs; a larger one links each member to its next by id, which
keeps identical boilerplate in one cluster without a quadratic self-join.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt

from tasks.dedup.config import DedupConfig


def bands(config: DedupConfig) -> tuple[int, int]:
    """(bands, rows a band) for the threshold and the number of permutations.

    A missed pair is lost and a false one only costs its verification, so misses weigh 49 times as much.
    """
    from datasketch import MinHashLSH

    index = MinHashLSH(threshold=config.threshold, num_perm=config.permutations, weights=(0.02, 0.98))
    return int(index.b), int(index.r)


def expected_recall(similarity: float, count: int, rows: int) -> float:
    """The probability that a pair of this similarity meets in at least one of `count` bands: 1 − (1 − sʳ)ᵇ."""
    return float(1 - (1 - similarity**rows) ** count)


def candidate_pairs(
    signatures: npt.NDArray[np.uint32], ids: Sequence[str], count: int, rows: int, config: DedupConfig
) -> set[tuple[int, int]]:
    """Pairs (i, j) of rows that share a bucket, i before j by id: the same whatever the order of the rows."""
    by_id = sorted(range(len(ids)), key=lambda row: ids[row])
    ordered = signatures[by_id]
    found: set[tuple[int, int]] = set()
    for band in range(count):
        part = np.ascontiguousarray(ordered[:, band * rows : (band + 1) * rows])
        keys = part.view(np.dtype((np.void, part.dtype.itemsize * rows))).ravel()
        order = np.argsort(keys, kind="stable")
        same = keys[order][1:] == keys[order][:-1]
        starts = np.flatnonzero(np.concatenate(([True], ~same)))
        for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
            if end - start > 1:
                members = [by_id[place] for place in order[start:end]]
                found |= set(combinations(members, 2) if len(members) <= config.bucket_pairs else pairwise(members))
    return found
