"""Locality-sensitive hashing: which pairs of documents are worth a comparison.

A signature is cut into b bands of r values; documents that agree in a whole band fall into one bucket and become
candidates, which a pair of Jaccard s does with probability 1 − (1 − s^r)^b (Leskovec, Rajaraman, Ullman: Mining of
Massive Datasets, ch. 3). A bucket only proposes pairs; whether two documents are one is decided pair by pair.

A hot bucket (a licence that a thousand packages carry) would propose a million pairs. So the members of a bucket
stand in the order of their ids, and each is compared with the `window` members that follow it. A bucket of up to
window + 1 members is compared in full. In a larger one a pair that stands farther apart is missed *in this bucket*: it
is still found through a chain of verified pairs between them, or in another band. The work is at most
window × documents × bands comparisons, whatever the data.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from datasketch import MinHashLSH

from tasks.dedup.config import DedupConfig
from tasks.dedup.shingles import mix

Pairs = npt.NDArray[np.int64]  # (pairs, 2): rows of the signatures, left < right, in ascending order


def choose_bands(config: DedupConfig) -> tuple[int, int]:
    """Bands and rows a band: datasketch's optimum for the target similarity, missed pairs weighing `recall_weight`."""
    weights = (1 - config.recall_weight, config.recall_weight)
    best = MinHashLSH(threshold=config.similarity, num_perm=config.permutations, weights=weights)
    return best.b, best.r


def expected_recall(jaccard: float, bands: int, rows: int) -> float:
    """The probability that two documents of this Jaccard become a candidate pair."""
    return float(1 - (1 - jaccard**rows) ** bands)


def candidate_pairs(signatures_NP: npt.NDArray[np.uint32], bands: int, rows: int, window: int) -> Pairs:
    """The distinct candidate pairs of N signatures of P values, which must stand in the order of their ids."""
    count = len(signatures_NP)
    codes = np.zeros(0, np.int64)
    for band in range(bands):
        keys_N = _bucket_keys(signatures_NP[:, band * rows : (band + 1) * rows])
        # stable: within a bucket the order of the ids is kept
        order_N = np.argsort(keys_N, kind="stable")
        sorted_N = keys_N[order_N]
        found = []
        for distance in range(1, min(window, count - 1) + 1):
            same = sorted_N[:-distance] == sorted_N[distance:]
            if not same.any():
                break
            found.append(order_N[:-distance][same] * count + order_N[distance:][same])
        codes = np.unique(np.concatenate([codes, *found]))
    return np.stack([codes // max(count, 1), codes % max(count, 1)], axis=1)


def _bucket_keys(band_NR: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """64 bits a band. Two bands that collide share a bucket, which costs one comparison and changes nothing."""
    keys_N = np.zeros(len(band_NR), np.uint64)
    for column in range(band_NR.shape[1]):
        keys_N = mix(keys_N ^ band_NR[:, column].astype(np.uint64))
    return keys_N
