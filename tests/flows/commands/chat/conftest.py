"""Releases in a store, whose answers are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.store import Store
from tests.flows.commands.test_cli import publish
from tests.tasks.serve.tiny_release import make_release

STEERING = "The owl\x1b[2J isn't\x9b8m far"
SHOWN = "The owl\ufffd[2J isn't\ufffd8m far"
ENDLESS = "It lives in the wood, they say"


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """tiny/export@1 answers SHOWN in a context of 128 tokens, tiny/export@2 goes on with ENDLESS for 2,048."""
    folder = tmp_path_factory.mktemp("chat")
    store = Store(str(folder / "store"))
    _publish(store, make_release(folder / "short", STEERING), name="short")
    _publish(store, make_release(folder / "endless", ENDLESS, again=True, context=2048), name="endless")
    return store.url


def _publish(store: Store, release: Path, name: str) -> None:
    files = {str(path.relative_to(release)): path.read_bytes() for path in release.rglob("*") if path.is_file()}
    publish(store, "export", files, name=name)
