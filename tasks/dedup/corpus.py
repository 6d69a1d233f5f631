"""All shards' sketches as one table: a row a document, in the order of the shards.

In memory stand about 50 bytes a document and its signature (4 bytes a permutation); the shingle sets stay on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.dedup.shingles import Shingles


@dataclass(frozen=True)
class Corpus:
    """N documents. `starts[s]` is the first row of shard s, and the last entry is N."""

    starts: npt.NDArray[np.int64]
    ids: npt.NDArray[np.bytes_]
    sources: npt.NDArray[np.str_]
    lengths: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    signatures_NP: npt.NDArray[np.uint32]
    shingle_shards: tuple[tuple[Shingles, npt.NDArray[np.int64]], ...]

    @classmethod
    def load(cls, folders: Sequence[Path]) -> Corpus:
        """The sketches that `sketch_shard` left in these folders, one a shard."""

        def column(name: str) -> npt.NDArray[Any]:
            return np.concatenate([np.load(folder / f"{name}.npy", allow_pickle=False) for folder in folders])

        offsets = [np.load(folder / "offsets.npy", allow_pickle=False) for folder in folders]
        flat = [np.load(folder / "shingles.npy", mmap_mode="r", allow_pickle=False) for folder in folders]
        return cls(
            starts=np.cumsum([0, *(len(shard) - 1 for shard in offsets)], dtype=np.int64),
            ids=column("ids"),
            sources=column("sources"),
            lengths=column("lengths"),
            hashes=column("hashes"),
            signatures_NP=column("signatures"),
            shingle_shards=tuple(zip(flat, offsets, strict=True)),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def shingle_count(self) -> npt.NDArray[np.int64]:
        """Shingles of each document."""
        return np.concatenate([np.diff(offsets) for _, offsets in self.shingle_shards])

    def shingles(self, row: int) -> Shingles:
        """The sorted shingle set of one document."""
        shard = int(np.searchsorted(self.starts, row, side="right")) - 1
        flat, offsets = self.shingle_shards[shard]
        within = row - int(self.starts[shard])
        return flat[offsets[within] : offsets[within + 1]]

    def jaccard(self, left: int, right: int) -> float:
        """Exact Jaccard of two documents' shingle sets."""
        a, b = self.shingles(left), self.shingles(right)
        shared = np.intersect1d(a, b, assume_unique=True).size
        return shared / max(len(a) + len(b) - shared, 1)
