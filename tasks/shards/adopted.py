"""Checks of folders made elsewhere that are to be adopted as artifacts with documents, pairs or questions."""

from __future__ import annotations

from collections.abc import Collection

from storage.artifact import Artifact
from storage.errors import DamagedArtifact, EmptyOutput
from storage.shards.documents import read_batches
from storage.shards.lines import read_json_lines


def check_documents(folder: Artifact) -> None:
    """Read every document of documents/*.parquet. Raises DamagedArtifact for a shard that isn't in our layout, and
    EmptyOutput if there is no document."""
    shards = folder.files("documents/*.parquet")
    if not sum(batch.num_rows for shard in shards for _, batch in read_batches(shard)):
        raise EmptyOutput(f"{folder.path}/documents has no document.", "Give a folder with documents.")


def check_rows(folder: Artifact, part: str, keys: Collection[str]) -> None:
    """Read every row of the JSON Lines in the subfolder `part`. Raises DamagedArtifact for a row without these keys."""
    for path in folder.files(f"{part}/*.jsonl"):
        try:
            for number, row in enumerate(read_json_lines(path), 1):
                lacking = set(keys) - set(row) if isinstance(row, dict) else set(keys)
                if lacking:
                    raise ValueError(f"line {number} has no {', '.join(sorted(lacking))}")
        except ValueError as error:
            raise DamagedArtifact(f"{path} can't be read: {error}.", "Write it as the stage does.") from error
