"""The source of each document of a token shard, in a file beside the shard: 00000.sources for 00000.tokens.

Kept apart from the ids, they leave the ids one stream in document order, and sources can be weighted at reading time,
without rewriting tokens. Documents of one source are mostly adjacent, so the file is run-length encoded: JSON with the
names, and for each run the index of its source and its number of documents.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from storage.errors import DamagedArtifact
from storage.shards.arrays import Int64
from storage.shards.lines import parse_json
from storage.shards.tokens import TokenShard

SUFFIX = ".sources"


def write_sources(path: Path, sources: Iterable[str]) -> None:
    """Write the source of each document of a shard, in document order."""
    runs = [(source, sum(1 for _ in run)) for source, run in itertools.groupby(sources)]
    names = sorted({source for source, _ in runs})
    number = {name: index for index, name in enumerate(names)}
    content = {
        "names": names,
        "sources": [number[source] for source, _ in runs],
        "documents": [documents for _, documents in runs],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")


def source_runs(tokens: Path, shard: TokenShard) -> tuple[list[str], Int64, Int64]:
    """The names of a shard's sources, the source's index for each of its R runs of documents, and the R + 1 boundaries
    of the runs, in tokens. Raises DamagedArtifact if the file is missing or belongs to another shard."""
    path = tokens.with_suffix(SUFFIX)
    try:
        content = parse_json(path.read_bytes())
        names = [str(name) for name in content["names"]]
        sources = np.array(content["sources"], np.int64)
        documents = np.array(content["documents"], np.int64)
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise _damaged(path, f"can't be read ({type(error).__name__})") from error
    if sources.ndim != 1 or sources.shape != documents.shape or documents.min(initial=1) < 1:
        raise _damaged(path, "lacks the number of documents of some of its runs")
    if documents.sum() != shard.header.documents:
        raise _damaged(path, f"does not describe the {shard.header.documents:,} documents of {tokens.name}")
    if len(sources) and not 0 <= sources.min() <= sources.max() < len(names):
        raise _damaged(path, "names no source for some of its documents")
    borders = shard.starts[np.concatenate(([0], np.cumsum(documents)))].astype(np.int64)
    return names, sources, borders


def _damaged(path: Path, problem: str) -> DamagedArtifact:
    return DamagedArtifact(f"{path} {problem}.", "Tokenize again: --refresh tokenize.")
