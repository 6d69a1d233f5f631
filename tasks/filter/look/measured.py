"""What a filter artifact was decided on: the documents that it read, and the signals that it used, from the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from storage import refs
from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.manifest import InputRef
from storage.store import Store
from tasks.filter.config import FilterConfig
from tasks.filter.families import asked
from tasks.filter.repair.stage import repair
from tasks.filter.side_files import beside

COLUMNS = ["id", "source"]


class Measured(NamedTuple):
    """A shard of documents and its side files by family."""

    documents: Path
    side_files: Mapping[str, Path]

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch, pa.RecordBatch]]:
        """(first row, ids and sources, signals), a row group at a time; no text is read."""
        return beside(self.documents, self.side_files, COLUMNS)


def measured(store: Store, profile: str, config: FilterConfig) -> list[Measured]:
    """The shards that the profile's newest filter artifact was decided on, with the signals that `config` asks for.

    Raises ConfigError where there is no such artifact, or where it was measured in another way than `config` says.
    """
    again = f"`gristmill run {profile} --to filter` measures it; the thresholds do not matter."
    entries = refs.history(store, f"{profile}/filter")
    manifest = store.manifest(entries[-1].location) if entries else None
    if manifest is None:
        raise ConfigError(f"{profile} has no filtered documents in this store.", again)
    documents = _input(store, manifest.uses.get(repair.name), "documents") or _input(
        store, manifest.origins["documents"]
    )
    assert documents is not None
    shards = documents.files("*.parquet")
    found: dict[str, list[Path]] = {}
    for name, measuring in asked(config).items():
        origin = manifest.uses.get(name)
        signals = store.get(origin.location) if origin else None
        if signals is None or signals.manifest is None:
            raise ConfigError(f"{name} was not measured.", again)
        if signals.manifest.payload.config != measuring.model_dump(mode="json"):
            raise ConfigError(f"{name} was measured in another way than this profile asks for.", again)
        found[name] = signals.files("*.parquet")
    return [
        Measured(shard, {family: files[number] for family, files in found.items()})
        for number, shard in enumerate(shards)
    ]


def _input(store: Store, origin: InputRef | None, part: str = "") -> Artifact | None:
    if origin is None:
        return None
    artifact = store.get(origin.location)
    part = part or origin.part
    return artifact.part(part) if part else artifact
