"""reference.parquet: the log-probabilities of both answers of a pair, by the id of the pair and a digest of its tokens.

The digest is checked when a row gets its values, so those of another tokenizer, template or text are never used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage.errors import DamagedArtifact
from storage.shards.parquet import open_parquet, parquet_writer
from tasks.posttrain.rows.form import Row

FILE = "reference.parquet"
ANSWERS = ("chosen", "rejected")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("tokens", pa.string(), nullable=False),  # a digest of them
        *(pa.field(name, pa.float32(), nullable=False) for name in ANSWERS),
    ]
)
Key = tuple[str, str]


def key_of(row: Row) -> Key:
    """The id of a rendered pair, and the digest of its tokens."""
    tokens = json.dumps([row["prompt_ids"], row["chosen_ids"], row["rejected_ids"]])
    return row["id"], hashlib.sha256(tokens.encode()).hexdigest()


def write_reference(path: Path, keys: Iterable[Key], scores: Sequence[Sequence[float]]) -> None:
    """Write the log-probabilities (chosen, rejected) of pairs."""
    ids, tokens = zip(*keys, strict=True)
    columns: list[Any] = [ids, tokens, *zip(*scores, strict=True)]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    with parquet_writer(path, SCHEMA, compression="zstd") as writer:
        writer.write_batch(pa.record_batch(arrays, SCHEMA))


def with_reference(rows: Sequence[Row], path: Path) -> list[Row]:
    """Rendered pairs with `ref_chosen_logps` and `ref_rejected_logps`, as TRL names them.

    Raises DamagedArtifact for a pair that the file doesn't have, or has with other tokens.
    """
    with open_parquet(path) as file:
        columns = [column.to_pylist() for column in file.read(use_threads=False).columns]
    known = {(id, tokens): scores for id, tokens, *scores in zip(*columns, strict=True)}
    joined = []
    for row in rows:
        scores = known.get(key_of(row))
        if scores is None:
            raise DamagedArtifact(
                f"{path.name} doesn't have log-probabilities of the pair {row['id']} with its present tokens.",
                "Compute them again: --refresh reference.",
            )
        joined.append({**row, **{f"ref_{name}_logps": score for name, score in zip(ANSWERS, scores, strict=True)}})
    return joined
