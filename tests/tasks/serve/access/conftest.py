"""Ledgers for tests: every property holds for each of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.serve.access.ledger import Ledger
from tasks.serve.access.redis_ledger import RedisLedger
from tests.tasks.serve.access.ledgers import Embedded, open_at, redis_server

needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=needs_redis)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a ledger is that several processes can open."""
    if request.param == "sqlite":
        yield str(tmp_path / "state")
        return
    with redis_server(tmp_path) as url:
        yield url


@pytest.fixture(params=["sqlite", "embedded", pytest.param("redis", marks=needs_redis)])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """A ledger. Examples of a property use a new key each."""
    if request.param == "redis":
        with redis_server(tmp_path) as url:
            yield open_at(url)
        return
    opened = open_at(str(tmp_path / "state")) if request.param == "sqlite" else RedisLedger(Embedded())
    yield opened
    opened.close()
