"""The measuring half of the filter: an artifact of its own, one row a document, aligned with the document shards.

Each side file carries the ids that it measured; a decision reads it only if they are the shard's, row by row. It holds
no text and no verdict, so a changed threshold never measures again.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.artifact import Artifact
from storage.documents import Document, read_documents
from storage.errors import DamagedArtifact
from tasks.filter import language, toxicity
from tasks.filter.config import SignalsConfig
from tasks.filter.heuristics import Form, measure_form
from tasks.filter.pii import find_pii
from tasks.output import Output
from tasks.shards import collect, map_shards
from tasks.stage import stage

FILE = "signals.parquet"


@stage(version=1)
def signals(config: SignalsConfig, documents: Artifact, out: Output) -> None:
    """Language, form, toxicity and personal data of every document, as columns of a side file a shard."""
    shards = documents.files("*.parquet")
    measured = map_shards(functools.partial(_measure_shard, config), shards, out, "measure")
    collect(measured, FILE, out.path)
    out.count(measured=sum(shard.counts["documents"] for shard in measured))


def read_signals(path: Path, documents: list[Document]) -> list[dict[str, Any]]:
    """The rows of a side file. Raises DamagedArtifact unless they are of just these documents, in this order."""
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    if [row["id"] for row in rows] != [document.id for document in documents]:
        raise DamagedArtifact(
            f"The signals {path.name} are not of these documents.", "Measure again: --refresh signals --refresh filter."
        )
    return rows


def _measure_shard(config: SignalsConfig, shard: Path, folder: Path) -> dict[str, int]:
    documents = list(read_documents(shard))
    toxic = toxicity.scores([document.text for document in documents], config.paragraph_characters) if documents else []
    rows = [_measure(document, score, config) for document, score in zip(documents, toxic, strict=True)]
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), folder / FILE, compression="zstd")
    return {"documents": len(rows)}


def _measure(document: Document, toxic: float, config: SignalsConfig) -> dict[str, Any]:
    spoken = language.identify(document.text, config.language_bytes)
    return {
        "id": document.id,
        "language": spoken.code,
        "language_score": spoken.score,
        "language_margin": spoken.margin,
        **measure_form(document.text)._asdict(),
        "toxicity": toxic,
        "pii": json.dumps(find_pii(document.text, config.pii_window)),
    }


_TYPES = {int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_FORM_TYPES = {"words": int, "stop_words": int, "lorem_ipsum": bool}
_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("language", pa.string()),
        ("language_score", pa.float64()),
        ("language_margin", pa.float64()),
        *((name, _TYPES[_FORM_TYPES.get(name, float)]) for name in Form._fields),
        ("toxicity", pa.float64()),
        ("pii", pa.string()),
    ]
)
