"""One release and one server for the tests that change neither."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tasks.serve.real_server import Server, make_release, serving


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release."""
    return make_release(tmp_path_factory.mktemp("release"), kv_heads=2)


@pytest.fixture(scope="session")
def server(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of that release. Requests of this machine need no key."""
    with serving(release, tmp_path_factory.mktemp("server")) as running:
        yield running
