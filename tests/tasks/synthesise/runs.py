"""Runs of `synthesise` on small corpora, and `python -m tests.tasks.synthesise.runs STORE SHARDS URL`, one to kill."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from storage.shards.documents import Document, read_documents, read_ledger, shard_name, write_documents
from storage.store import Store
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.stage.session import Session, open_session
from tasks.synthesise import SynthesiseConfig, synthesise
from tests.notes import Notes

TEXT = "Document {number} is about a mill by the river, which ground {number} sacks of flour each day for the town. "
SHORTEN = {"name": "short", "text": "Shorten: {text}"}


def document(number: int, source: str = "web", **metadata: Any) -> Document:
    """A document of 300 characters."""
    return Document.new(TEXT.format(number=number) * 3, source, **metadata)


def corpus(folder: Path, *shards: list[Document]) -> Artifact:
    """A folder of documents."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, documents in enumerate(shards):
        write_documents(folder / shard_name(number), documents)
    return Artifact.at(folder)


def config_of(*prompts: dict[str, Any], **more: Any) -> SynthesiseConfig:
    """A config with these prompts, or one that shortens."""
    return SynthesiseConfig.model_validate({"model": "m", "prompts": [*prompts] or [SHORTEN], **more})


def runtime(url: str, **more: Any) -> Runtime:
    """The runtime for a server of a test, without long pauses."""
    endpoint = {"backoff_seconds": 0.001, "timeout_seconds": 5, "concurrent_requests": 3, **more.pop("endpoint", {})}
    return Runtime.model_validate({"synthesise": {"url": url, **more}, "endpoint": endpoint})


def run(folder: Path, documents: Artifact, config: SynthesiseConfig, how: Runtime) -> Output:
    """A run on a plain folder."""
    out = Output.at(folder, stage="synthesise", runtime=how)
    synthesise.function(config, documents, out)
    return out


def store_run(store: Path, documents: Artifact, config: SynthesiseConfig, how: Runtime) -> tuple[Artifact, bool]:
    """The artifact of a store, and whether it was there."""
    with open_session(Session(Store(str(store)), how, observer=Notes())):
        return synthesise.materialize(config, [documents])


def made_of(folder: Path) -> list[Document]:
    """The new documents."""
    documents = [one for shard in sorted((folder / "documents").glob("*")) for one in read_documents(shard)]
    return [one for one in documents if one.source.startswith("synthetic/")]


def reasons(folder: Path) -> dict[str, str]:
    """Why answers are no documents, by the id of the document that was sent."""
    return {row.id: row.reason for shard in sorted((folder / "ledger").glob("*")) for row in read_ledger(shard)}


if __name__ == "__main__":
    store_run(Path(sys.argv[1]), Artifact.at(Path(sys.argv[2])), config_of(), runtime(sys.argv[3]))
