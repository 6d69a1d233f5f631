"""Documents by their ids, read from shards that aren't sorted by them.

It reads the column of ids and compares it by Arrow, and reads texts only of the documents found.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.shards.documents import DOCUMENT_SCHEMA, Document, read_batches

TITLES = ("title", "name", "url", "path", "file")  # fields of metadata, the most informative first


def documents_of(ids: Sequence[str], folders: Iterable[Path]) -> dict[str, Document]:
    """The documents with these ids, from the first folder that has them."""
    by_id: dict[str, Document] = {}
    for folder, part in itertools.product(dict.fromkeys(folders), ("removed", "documents")):
        wanted = pa.array([identity for identity in ids if identity not in by_id], pa.string())
        for path in sorted((folder / part).glob("*.parquet")) if len(wanted) else ():
            places: list[int] = []
            for first, batch in read_batches(path, ["id"]):
                here = pc.is_in(batch["id"], wanted).to_numpy(zero_copy_only=False)
                places += (first + np.flatnonzero(here)).tolist()
            by_id |= {row["id"]: Document(**row) for row in rows_at(path, DOCUMENT_SCHEMA.names, places)}
    return by_id


def rows_at(path: Path, columns: list[str], wanted: list[int]) -> Iterator[dict[str, Any]]:
    """The rows of a shard at these places, which ascend. Reads only the row groups that hold one."""
    for first, batch in read_batches(path, columns, holding=wanted) if wanted else ():
        begin, end = bisect_left(wanted, first), bisect_left(wanted, first + len(batch))
        yield from batch.take(pa.array([row - first for row in wanted[begin:end]])).to_pylist()


def title_of(metadata: str) -> str:
    """A document's title or origin, if its metadata have one."""
    fields = json.loads(metadata or "{}")
    titles = (fields.get(name) for name in TITLES) if isinstance(fields, dict) else ()
    return next((value for value in titles if isinstance(value, str) and value), "")
