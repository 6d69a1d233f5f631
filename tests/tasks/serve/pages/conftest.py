"""One browser and one server for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tasks.serve.pages.driven import Driven, driven


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    """A browser and its server."""
    with driven(tmp_path_factory.mktemp("chat")) as made:
        yield made


@pytest.fixture
def chat(shared: Driven) -> Driven:
    """The chat page at a desk, with nothing kept."""
    shared.fresh()
    return shared
