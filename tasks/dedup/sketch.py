"""What dedup knows of a document: its exact hash, its shingles, its MinHash signature.

Normalisation: Unicode NFC, case folded, white space collapsed. Shingles are n-grams of words without punctuation (two
editions differ in their quotation marks), hashed to 64 bits; a text shorter than n words is one shingle. Signatures
are datasketch's (Broder 1997, affine permutations over 32 bits).
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from storage.documents import read_documents
from tasks.dedup.config import DedupConfig

SKETCHES = "sketches.parquet"
SIGNATURES = "signatures.npy"
WORD = re.compile(r"\w+")
_LOW_BITS = (1 << 32) - 1


def normalise(text: str) -> str:
    """The text that is compared: NFC, case folded, one space between words."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def shingles(text: str, ngram: int) -> list[int]:
    """64-bit hashes of the word n-grams of a normalised text, with repetitions."""
    words = WORD.findall(text) or [text]
    if len(words) <= ngram:
        return [xxhash.xxh3_64_intdigest(" ".join(words).encode("utf-8", "surrogatepass"))]
    joined = (" ".join(words[i : i + ngram]) for i in range(len(words) - ngram + 1))
    return [xxhash.xxh3_64_intdigest(gram.encode("utf-8", "surrogatepass")) for gram in joined]


def jaccard(first: frozenset[int], second: frozenset[int]) -> float:
    """|A ∩ B| / |A ∪ B|."""
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared)


def signature(hashes: list[int], config: DedupConfig, model: Any) -> npt.NDArray[np.uint32]:
    """The MinHash signature of shingle hashes; `model` is an empty MinHash whose permutations are reused."""
    sketch = model.copy()
    sketch.update_batch(hashes)
    values: npt.NDArray[np.uint32] = sketch.hashvalues.astype(np.uint32)
    return values


def empty_minhash(config: DedupConfig) -> Any:
    """datasketch's MinHash over values that are hashed already."""
    from datasketch import MinHash

    return MinHash(num_perm=config.permutations, seed=config.seed, hashfunc=_low_bits, scheme="affine32")


def _low_bits(value: int) -> int:
    return value & _LOW_BITS


def sketch_shard(config: DedupConfig, shard: Path, folder: Path) -> dict[str, int]:
    """Sketch every document of a shard: ids, sources, lengths and exact hashes in one file, signatures in another."""
    model = empty_minhash(config)
    rows: list[tuple[str, str, int, bytes]] = []
    signatures = []
    for document in read_documents(shard):
        text = normalise(document.text)
        rows.append((document.id, document.source, len(document.text), _exact(text)))
        signatures.append(signature(shingles(text, config.ngram), config, model))
    names = ("id", "source", "length", "exact")
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    pq.write_table(
        pa.table({name: list(column) for name, column in zip(names, columns, strict=True)}), folder / SKETCHES
    )
    np.save(folder / SIGNATURES, np.array(signatures, np.uint32).reshape(-1, config.permutations))
    return {"documents": len(rows)}


def _exact(text: str) -> bytes:
    return xxhash.xxh3_128_digest(text.encode("utf-8", "surrogatepass"))
