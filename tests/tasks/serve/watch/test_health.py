"""Readiness: a token proves it, and a dead, stuck or refusing engine is never ready."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tasks.serve.engines.protocol import EngineRefusal, Piece, Sampling
from tasks.serve.watch import Health
from tasks.serve.watch.config import HealthConfig
from tests.tasks.serve.watch.engine import HttpEngine
from tests.tasks.serve.watch.report import value, watching


@pytest.fixture
def engine(unused_port: int) -> HttpEngine:
    return HttpEngine(unused_port)


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def health(engine: HttpEngine, said: list[bool], within: float = 1.0, every: float = 60.0) -> Health:
    return Health(engine, [1, 2], HealthConfig(within=within, every=every), said.append)


def test_a_killed_engine_is_unready_within_two_seconds_and_ready_again_when_it_is_back(engine: HttpEngine) -> None:
    async def check() -> None:
        said = list[bool]()
        one = health(engine, said)
        first = await one.check()
        assert (first.ready, first.reason) == (False, "the engine does not answer (EngineFault)")
        engine.start_process()
        await asyncio.sleep(1.0)
        assert (await one.check()).ready
        engine.send(signal.SIGKILL)
        killed = time.monotonic()
        while (found := await one.check()).ready:
            assert time.monotonic() - killed < 2
            await asyncio.sleep(0.05)
        assert found.as_json() == {"ready": False, "reason": "the engine does not answer (EngineFault)", "seconds": 0.0}
        engine.start_process()
        await asyncio.sleep(1.0)
        assert (await one.check()).ready
        assert said == [True, False, True]
        await one.stop()

    try:
        asyncio.run(check())
    finally:
        engine.send(signal.SIGKILL)


def test_a_stuck_engine_is_unready_after_its_time_though_its_port_is_open(engine: HttpEngine) -> None:
    async def check() -> None:
        one = health(engine, [], within=0.5)
        engine.start_process()
        assert (await one.check()).ready
        engine.send(signal.SIGSTOP)
        await asyncio.sleep(1.0)
        found = await one.check()
        assert (found.ready, found.reason) == (False, "the engine gave no token within 0.5 s")
        assert one.takes_requests, "it may be busy: they wait"
        engine.send(signal.SIGCONT)
        one.token()
        assert one.ready, "so it was"
        await asyncio.sleep(1.0)
        assert (await one.check()).ready
        one.gone()
        assert not one.takes_requests

    try:
        asyncio.run(check())
    finally:
        engine.send(signal.SIGKILL)


def test_checks_at_once_share_a_token_and_tokens_of_users_spare_it(engine: HttpEngine) -> None:
    async def check() -> None:
        one = health(engine, [])
        engine.start_process()
        found = await asyncio.gather(*(one.check() for _ in range(50)))
        assert all(each.ready for each in found)
        assert engine.asked() == 1
        for _ in range(15):
            await asyncio.sleep(0.1)
            one.token()
        assert (await one.check()).ready
        assert engine.asked() == 1
        one.gone()
        one.token()  # it was on its way when the engine died
        assert not (await one.check()).ready
        assert engine.asked() == 1

    try:
        asyncio.run(check())
    finally:
        engine.send(signal.SIGKILL)


def test_the_gauge_follows_without_anybody_asking(engine: HttpEngine, tmp_path: Path) -> None:
    async def check() -> None:
        with watching(tmp_path) as watch:
            one = Health(engine, [1], HealthConfig(every=0.2), lambda now: watch.ready("tiny", now))
            engine.start_process()
            one.start()
            await asyncio.sleep(0.5)
            assert value(watch, "gristmill_ready", model_name="tiny") == 1
            engine.send(signal.SIGKILL)
            await asyncio.sleep(1.7)
            assert value(watch, "gristmill_ready", model_name="tiny") == 0
            await one.stop()

    try:
        asyncio.run(check())
    finally:
        engine.send(signal.SIGKILL)


class Refusing(HttpEngine):
    """Refuses every prompt, or has a bug."""

    def __init__(self, error: Exception) -> None:
        super().__init__(1)
        self._error = error

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """Raises."""
        raise self._error
        yield Piece("")


def test_an_engine_that_refuses_is_not_ready_and_a_bug_does_not_end_the_checks() -> None:
    async def check() -> None:
        refused = await health(Refusing(EngineRefusal("no")), []).check()
        assert (refused.ready, refused.reason) == (False, "the engine does not answer (EngineRefusal)")
        buggy = health(Refusing(KeyError("token")), [], every=0.1)
        buggy.start()
        await asyncio.sleep(0.3)
        found = None
        with suppress(KeyError):
            found = await buggy.check()
        assert found is None or not found.ready
        await buggy.stop()

    asyncio.run(check())
