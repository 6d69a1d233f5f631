"""Engines that are children: what they answer, that a closed answer stops, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from models.runtimes.llama_server import LlamaServerSpec
from tasks.serve.engines.llama_cpp import LlamaCppEngine
from tasks.serve.engines.protocol import EngineFault, EngineRefusal, Piece, Sampling
from tasks.serve.engines.transformers.engine import TransformersEngine, TransformersSpec
from tasks.serve.release import Release
from tests.tasks.serve.tiny_release import GGUF, make_release

SAYS = "It lives in the wood, they say"
ASKED = [{"role": "user", "content": "Where does the fox live?"}]
CONTEXT = 2048
ENGINES = ("llama.cpp", "transformers")
SLOTS = 2
Child = LlamaCppEngine | TransformersEngine


def child(name: str, folder: Path, log: Path) -> Child:
    """The engine of a folder that `make_release` made."""
    if name == "llama.cpp":
        return LlamaCppEngine(LlamaServerSpec(str(folder / GGUF), "", CONTEXT, SLOTS, threads=1), log)
    return TransformersEngine(TransformersSpec(str(folder), "", CONTEXT, SLOTS, threads=1), log)


@dataclass
class Running:
    """An engine that says SAYS again and again, and the loop that it runs in."""

    release: Release
    engine: Child
    runner: asyncio.Runner

    async def answered(self, **sampling: Any) -> list[Piece]:
        asked = Sampling(**{"max_tokens": 9, "temperature": 0, **sampling})
        return [piece async for piece in self.engine.generate(self.release.chat_ids(ASKED), asked)]


@pytest.fixture(scope="module", params=ENGINES)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("engine")
    release = Release("endless", make_release(folder, SAYS, again=True, context=CONTEXT), "", {})
    engine = child(request.param, release.folder, folder / "engine.log")
    with asyncio.Runner() as runner:
        yield Running(release, engine, runner)
        runner.run(engine.stop())


@pytest.fixture
def running(shared: Running) -> Running:
    if not shared.engine.alive:
        shared.runner.run(shared.engine.start())
    return shared


def text(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def test_an_answer_comes_token_by_token_as_its_sampling_says(running: Running) -> None:
    async def work() -> None:
        answered = running.answered
        pieces = await answered()
        assert text(pieces) == SAYS
        assert [piece.ids for piece in pieces if piece.ids] == [(id,) for id in running.release.text_ids(SAYS)]
        assert [piece.finish for piece in pieces] == [None] * 9 + ["length"]

        stopped = await answered(stop=("wood", "nothing"))
        assert text(stopped) == "It lives in the "
        assert (stopped[-1].finish, stopped[-1].stop) == ("stop", "wood")
        across = await answered(stop=(", they",))
        assert text(across) == "It lives in the wood", "a stop text that is several tokens"

        told = await answered(logprobs=2)
        choices = [choice for piece in told for choice in piece.choices]
        assert "".join(choice.text for choice in choices) == SAYS
        assert all(len(choice.top) == 2 and choice.top[0] == (choice.text, choice.logprob) for choice in choices)
        assert all(-0.01 < choice.logprob <= 0 for choice in choices)

        drawn = [text(await answered(temperature=20.0, seed=seed)) for seed in (3, 3, 4)]
        assert drawn[0] == drawn[1] != drawn[2]
        free = [text(await answered(temperature=20.0)) for _ in range(2)]
        assert free[0] != free[1], "without a seed each answer has its own"
        for narrow in ({"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}):
            assert text(await answered(temperature=2.0, **narrow)) == SAYS
        for penalty in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 10.0}):
            assert text(await answered(max_tokens=18, **penalty)).startswith(SAYS), "its logits are far apart"

    running.runner.run(work())


def test_the_likeliest_tokens_are_told_without_what_forces_one(running: Running) -> None:
    async def work() -> None:
        (first, likely), *others = await running.engine.next_token(running.release.chat_ids(ASKED), 5)
        assert first == running.release.text_ids(SAYS)[0]
        assert -0.01 < likely <= 0
        assert len(others) == 4
        with pytest.raises(EngineRefusal):
            await running.engine.embed([1])

    running.runner.run(work())


def test_a_closed_answer_stops_within_a_second(running: Running) -> None:
    async def work() -> None:
        ids = running.release.chat_ids(ASKED)
        pieces = running.engine.generate(ids, Sampling(CONTEXT - len(ids), temperature=0))
        await anext(pieces)
        assert await running.engine.running() == 1
        await pieces.aclose()
        assert await _falls(running.engine)

        cancelled = asyncio.create_task(running.answered(max_tokens=CONTEXT - len(ids)))
        while not await running.engine.running():
            await asyncio.sleep(0.01)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await _falls(running.engine)

    running.runner.run(work())


async def _falls(engine: Child) -> bool:
    ends = time.monotonic() + 1.0
    while time.monotonic() < ends:
        if not await engine.running():
            return True
        await asyncio.sleep(0.02)
    return False


def test_requests_run_at_the_same_time_and_their_texts_do_not_cross(running: Running) -> None:
    async def work() -> None:
        many = await asyncio.gather(*(running.answered(max_tokens=9 * (1 + n % 3)) for n in range(12)))
        assert [text(pieces) for pieces in many] == [SAYS * (1 + n % 3) for n in range(12)]

    running.runner.run(work())


def test_a_request_that_the_model_cannot_read_is_refused_and_harms_no_other(running: Running) -> None:
    async def work() -> None:
        for ids in ([1, 10**6], [5] * (CONTEXT + 1)):
            with pytest.raises(EngineRefusal):
                async for _ in running.engine.generate(ids, Sampling(1)):
                    pass
        assert text(await running.answered()) == SAYS

    running.runner.run(work())


def test_a_killed_child_is_a_fault_and_starts_again(running: Running) -> None:
    async def work() -> None:
        engine = running.engine
        pieces = engine.generate(running.release.chat_ids(ASKED), Sampling(1500, temperature=0))
        await anext(pieces)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineFault, match="doesn't answer"):
            async for _ in pieces:
                pass
        for _ in range(100):
            if not engine.alive:
                break
            await asyncio.sleep(0.02)
        assert not engine.alive
        for asked in (engine.running(), running.answered(), engine.next_token([1], 1)):
            with pytest.raises(EngineFault, match="isn't running"):
                await asked
        await engine.start()
        assert engine.alive
        assert text(await running.answered()) == SAYS

    running.runner.run(work())


def test_a_stopped_engine_leaves_nothing_behind(running: Running) -> None:
    async def work() -> None:
        engine = running.engine
        pid, folder = engine.pid, Path(engine._process.socket).parent
        assert folder.stat().st_mode & 0o077 == 0, "nobody else may reach its socket"
        assert os.getsid(pid) == pid, "Ctrl-C at the terminal of the parent is not for it"
        await engine.stop()
        assert not engine.alive
        assert not folder.exists()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        await engine.stop()

    running.runner.run(work())


@pytest.mark.parametrize("name", ENGINES)
def test_a_file_that_is_not_a_model_says_why(name: str, tmp_path: Path) -> None:
    (tmp_path / "gguf").mkdir()
    (tmp_path / GGUF).write_bytes(b"GGUF" + b"\0" * 100)

    async def live() -> None:
        engine = child(name, tmp_path, tmp_path / "engine.log")
        with pytest.raises(EngineFault, match=rf"^{name} didn't start: {name} can't load {tmp_path}"):
            await engine.start()
        assert not engine.alive

    asyncio.run(live())
