"""Spherical k-means: a unit vector belongs to the centre with which its cosine is highest (Dhillon and Modha 2001).

It starts from vectors drawn by the seed. One thread computes, and sums are in float64 in the order of the vectors, so
that the same vectors give the same centres on any number of workers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from storage.shards.arrays import Float32, Int64
from tasks.filter.classifier.scorer import one_thread

ROWS = 8192  # vectors compared with all centres at a time


def cosines(vectors: Float32, others: Float32) -> Any:
    """The cosines of unit vectors (N, C) with others (M, C), as a tensor (N, M). The inputs are copied, so that memory
    is always aligned as torch aligns it: products of equal numbers are then equal."""
    import torch

    return torch.tensor(vectors) @ torch.tensor(others).T


def nearest(vectors: Float32, centres: Float32) -> tuple[Int64, Float32]:
    """The nearest centre of each vector, the first of equally near ones, and its cosine."""
    places, values = np.empty(len(vectors), np.int64), np.empty(len(vectors), np.float32)
    with one_thread("cpu"):
        for start in range(0, len(vectors), ROWS):
            block = cosines(vectors[start : start + ROWS], centres).numpy()
            places[start : start + ROWS] = block.argmax(axis=1)
            values[start : start + ROWS] = block.max(axis=1)
    return places, values


def find_centres(vectors: Float32, count: int, iterations: int, seed: int) -> Float32:
    """The centres (count, C), of length 1, of unit vectors (N, C), or N centres if that is fewer. A centre without
    vectors stays where it was."""
    start = np.random.default_rng(seed).permutation(len(vectors))[:count]
    centres = vectors[np.sort(start)]
    before = np.full(len(vectors), -1)
    for _ in range(iterations):
        places, _ = nearest(vectors, centres)
        if (places == before).all():
            break
        before = places
        sums = np.zeros(centres.shape, np.float64)
        np.add.at(sums, places, vectors)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(lengths > 0, sums / np.maximum(lengths, 1e-30), centres).astype(np.float32)
    return centres
