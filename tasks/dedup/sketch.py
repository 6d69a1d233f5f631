"""One shard's sketches: all that duplicates are found by, in files beside the shard, so that a resume reads them.

    ids.npy, sources.npy, lengths.npy   of the documents, in the shard's order
    hashes.npy        uint64 (documents, 2)             xxh3_128 of the normalised text
    signatures.npy    uint32 (documents, permutations)  MinHash (Broder 1997) by datasketch, scheme affine32
    shingles.npy, offsets.npy   document i is shingles[offsets[i]:offsets[i + 1]], sorted

The shingle sets are kept since candidates are verified by them; they are mapped, not loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from datasketch import MinHash

from storage.documents import read_documents
from tasks.dedup.config import DedupConfig
from tasks.dedup.shingles import Shingles, exact_hash, normalise, shingles

Signature = npt.NDArray[np.uint32]

_BATCH = 4096  # shingles at once: 2 MB of products stay in the cache, and a book needs no gigabytes
_LOW_32 = np.uint64(0xFFFFFFFF)


def sketch_shard(shard: Path, folder: Path, *, config: DedupConfig) -> dict[str, Any]:
    """Write the sketches of one shard of documents into `folder`; for `map_shards`."""
    empty = minhash(config)
    ids, sources, lengths, hashes, sets, signatures = [], [], [], [], [], []
    for document in read_documents(shard):
        normalised = normalise(document.text)
        found = shingles(normalised, config.ngram)
        ids.append(document.id.encode())
        sources.append(document.source)
        lengths.append(len(document.text))
        hashes.append(exact_hash(normalised))
        sets.append(found)
        signatures.append(signature(found, empty))
    arrays: dict[str, npt.NDArray[Any]] = {
        "ids": np.array(ids, dtype=np.bytes_),
        "sources": np.array(sources, dtype=np.str_),
        "lengths": np.array(lengths, dtype=np.int64),
        "hashes": np.array(hashes, dtype=np.uint64).reshape(-1, 2),
        "signatures": np.array(signatures, dtype=np.uint32).reshape(-1, config.permutations),
        "shingles": np.concatenate([np.zeros(0, np.uint64), *sets]),
        "offsets": np.cumsum([0, *(len(found) for found in sets)], dtype=np.int64),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    return {"documents": len(ids), "characters": sum(lengths)}


def minhash(config: DedupConfig) -> MinHash:
    """An empty MinHash over numbers that are hashes already: datasketch is to permute them, not to hash them again."""
    return MinHash(num_perm=config.permutations, seed=config.seed, scheme="affine32", hashfunc=_as_it_is)


def signature(found: Shingles, empty: MinHash) -> Signature:
    """The MinHash values of a shingle set under the permutations of `empty`, by the low 32 bits of each shingle."""
    sketch = empty.copy()
    low = found & _LOW_32
    for start in range(0, len(low), _BATCH):
        sketch.update_batch(low[start : start + _BATCH].tolist())
    values: Signature = sketch.hashvalues
    return values


def _as_it_is(value: int) -> int:
    return value
