"""Publishes artifacts until it is killed: the child process of `test_kill_9_at_any_instant_leaves_the_store_sound`."""

from __future__ import annotations

import itertools
import os
from datetime import UTC, datetime

from storage.digests import list_files, tree_digest
from storage.keys import KeyPayload
from storage.manifest import Manifest
from storage.store import Store


def main(url: str) -> None:
    """Publish artifacts for ever."""
    store = Store(url)
    for number in itertools.count():
        payload = KeyPayload(stage="demo", version=1, config={"pid": os.getpid(), "number": number}, inputs={})
        folder = store.workspace("demo", payload.key()) / "out"
        folder.mkdir(exist_ok=True)
        for name in range(8):
            (folder / f"{name}.bin").write_bytes(os.urandom(20_000))
        files = list_files(folder)
        created = datetime.now(UTC).isoformat()
        digest = tree_digest(files)
        store.publish(folder, Manifest(key=payload.key(), payload=payload, digest=digest, files=files, created=created))
