"""Spherical k-means: unit vectors belong to the centre to which their cosine is highest (Dhillon and Modha 2001).

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
    """The cosines of unit vectors (N, C) with others (M, C), as a tensor (N, M). Copied, so that memory is aligned as
    torch aligns it, whatever it was before: products of equal numbers are then equal."""
    import torch

    return torch.tensor(vectors) @ torch.tensor(others).T


def nearest(vectors: Float32, centres: Float32) -> tuple[Int64, Float32]:
    """The nearest centre of each vector, the first of equally near ones, and its cosine."""
    places, values = np.empty(len(vectors), np.int64), np.empty(len(vectors), np.float32)
    with one_thread("cpu"):
        for start in range(0, len(vectors), ROWS):
            found = cosines(vectors[start : start + ROWS], centres).numpy()
            places[start : start + ROWS] = found.argmax(axis=1)
            values[start : start + ROWS] = found.max(axis=1)
    return places, values


def find_centres(vectors: Float32, count: int, iterations: int, seed: int) -> Float32:
    """The centres (count, C) of unit vectors (N, C), of length 1; fewer where there are fewer vectors. A centre that no
    vector belongs to stays where it was."""
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
