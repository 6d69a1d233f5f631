"""Measures speeds on few tokens, as those of tiny models don't prove anything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks.export.proof import speed


@pytest.fixture(scope="session", autouse=True)
def _few_tokens() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "GENERATED", 2)
        yield
