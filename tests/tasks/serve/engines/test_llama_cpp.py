"""llama.cpp in its child: what it answers, that a closed answer stops, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from models.runtimes.llama_server import LlamaServerSpec
from tasks.serve.engines.llama_cpp import LlamaCppEngine
from tasks.serve.engines.protocol import EngineFault, EngineRefusal, Piece, Sampling
from tasks.serve.release import Release
from tests.ended import have_ended
from tests.tasks.serve.tiny_release import GGUF, make_release

ROOT = Path(__file__).parents[4]
SAYS = "It lives in the wood, they say"
ASKED = [{"role": "user", "content": "Where does the fox live?"}]
CONTEXT = 2048


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """It answers SAYS, again and again."""
    folder = tmp_path_factory.mktemp("engine")
    return Release("endless", make_release(folder, SAYS, again=True, context=CONTEXT), "", {})


def spec(release: Release, slots: int = 2) -> LlamaServerSpec:
    return LlamaServerSpec(str(release.folder / GGUF), "", CONTEXT, slots, threads=1)


def run(release: Release, tmp_path: Path, work: Callable[[LlamaCppEngine], Awaitable[None]]) -> None:
    async def live() -> None:
        async with running(release, tmp_path) as engine:
            await work(engine)

    asyncio.run(live())


@contextlib.asynccontextmanager
async def running(release: Release, tmp_path: Path) -> AsyncIterator[LlamaCppEngine]:
    engine = LlamaCppEngine(spec(release), tmp_path / "engine.log")
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def answered(engine: LlamaCppEngine, release: Release, **sampling: Any) -> list[Piece]:
    ids = release.chat_ids(ASKED)
    return [piece async for piece in engine.generate(ids, Sampling(**{"max_tokens": 9, "temperature": 0, **sampling}))]


def text(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def pid_of(engine: LlamaCppEngine) -> int:
    assert engine._process is not None
    return engine._process.pid


def test_an_answer_comes_token_by_token_as_its_sampling_says(release: Release, tmp_path: Path) -> None:
    async def work(engine: LlamaCppEngine) -> None:
        pieces = await answered(engine, release)
        assert text(pieces) == SAYS
        assert [piece.ids for piece in pieces if piece.ids] == [(id,) for id in release.text_ids(SAYS)]
        assert [piece.finish for piece in pieces] == [None] * 9 + ["length"]

        stopped = await answered(engine, release, stop=("wood", "nothing"))
        assert text(stopped) == "It lives in the "
        assert (stopped[-1].finish, stopped[-1].stop) == ("stop", "wood")
        across = await answered(engine, release, stop=(", they",))
        assert text(across) == "It lives in the wood", "a stop text that is several tokens"

        told = await answered(engine, release, logprobs=2)
        choices = [choice for piece in told for choice in piece.choices]
        assert "".join(choice.text for choice in choices) == SAYS
        assert all(len(choice.top) == 2 and choice.top[0] == (choice.text, choice.logprob) for choice in choices)
        assert all(-0.01 < choice.logprob <= 0 for choice in choices)

        drawn = [text(await answered(engine, release, temperature=20.0, seed=seed)) for seed in (3, 3, 4)]
        assert drawn[0] == drawn[1] != drawn[2]
        free = [text(await answered(engine, release, temperature=20.0)) for _ in range(2)]
        assert free[0] != free[1], "without a seed each answer has its own"

        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
        formed = text(await answered(engine, release, json_schema=schema, max_tokens=60))
        assert formed.lstrip().startswith("{")
        assert text(await answered(engine, release, grammar='root ::= "owl"', max_tokens=60)) == "owl"
        for grammar, fault in (
            ("root ::= ((", "expecting ')'"),
            ("root ::= nothing", "Undefined rule identifier 'nothing'"),
            ('stem ::= "a"', "it has no rule `root`"),
        ):
            with pytest.raises(EngineRefusal, match=f"The grammar is not valid: {re.escape(fault)}"):
                await answered(engine, release, grammar=grammar)

    run(release, tmp_path, work)


def test_the_likeliest_tokens_are_told_without_what_forces_one(release: Release, tmp_path: Path) -> None:
    async def work(engine: LlamaCppEngine) -> None:
        (first, likely), *others = await engine.next_token(release.chat_ids(ASKED), 5)
        assert first == release.text_ids(SAYS)[0]
        assert -0.01 < likely <= 0
        assert len(others) == 4
        with pytest.raises(EngineRefusal):
            await engine.embed([1])

    run(release, tmp_path, work)


def test_a_closed_answer_stops_within_a_second(release: Release, tmp_path: Path) -> None:
    async def work(engine: LlamaCppEngine) -> None:
        ids = release.chat_ids(ASKED)
        pieces = engine.generate(ids, Sampling(CONTEXT - len(ids), temperature=0))
        await anext(pieces)
        assert await engine.running() == 1
        await pieces.aclose()
        assert await _falls(engine)

        cancelled = asyncio.create_task(answered(engine, release, max_tokens=CONTEXT - len(ids)))
        while not await engine.running():
            await asyncio.sleep(0.01)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await _falls(engine)

    run(release, tmp_path, work)


async def _falls(engine: LlamaCppEngine) -> bool:
    ends = time.monotonic() + 1.0
    while time.monotonic() < ends:
        if not await engine.running():
            return True
        await asyncio.sleep(0.02)
    return False


def test_requests_run_at_the_same_time_and_their_texts_do_not_cross(release: Release, tmp_path: Path) -> None:
    async def work(engine: LlamaCppEngine) -> None:
        many = await asyncio.gather(*(answered(engine, release, max_tokens=9 * (1 + n % 3)) for n in range(12)))
        assert [text(pieces) for pieces in many] == [SAYS * (1 + n % 3) for n in range(12)]

    run(release, tmp_path, work)


def test_a_killed_child_is_a_fault_and_starts_again(release: Release, tmp_path: Path) -> None:
    async def work(engine: LlamaCppEngine) -> None:
        assert engine.alive
        pieces = engine.generate(release.chat_ids(ASKED), Sampling(1500, temperature=0))
        await anext(pieces)
        os.kill(pid_of(engine), signal.SIGKILL)
        with pytest.raises(EngineFault, match="doesn't answer"):
            async for _ in pieces:
                pass
        for _ in range(100):
            if not engine.alive:
                break
            await asyncio.sleep(0.02)
        assert not engine.alive
        for asked in (engine.running(), answered(engine, release), engine.next_token([1], 1)):
            with pytest.raises(EngineFault, match="isn't running"):
                await asked
        await engine.start()
        assert engine.alive
        assert text(await answered(engine, release)) == SAYS

    run(release, tmp_path, work)


def test_a_stopped_engine_leaves_nothing_behind(release: Release, tmp_path: Path) -> None:
    async def work(engine: LlamaCppEngine) -> None:
        assert engine._folder is not None
        pid, folder = pid_of(engine), Path(engine._folder.name)
        assert folder.stat().st_mode & 0o077 == 0, "nobody else may reach its socket"
        assert os.getsid(pid) == pid, "Ctrl-C at the terminal of the parent is not for it"
        await engine.stop()
        assert not engine.alive
        assert not folder.exists()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        await engine.stop()

    run(release, tmp_path, work)


def test_a_file_that_is_not_a_model_says_why(release: Release, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\0" * 100)

    async def live() -> None:
        broken = LlamaServerSpec(str(tmp_path / "broken.gguf"), "", 64, 1, 1)
        engine = LlamaCppEngine(broken, tmp_path / "engine.log")
        with pytest.raises(EngineFault, match="start: llama"):
            await engine.start()
        assert not engine.alive

    asyncio.run(live())


PARENT = """
import asyncio, sys
from pathlib import Path
from models.runtimes.llama_server import LlamaServerSpec
from tasks.serve.engines.llama_cpp import LlamaCppEngine
async def main():
    engine = LlamaCppEngine(LlamaServerSpec(sys.argv[1], "", 64, 1, 1), Path(sys.argv[2]))
    await engine.start()
    print(engine._process.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_a_killed_parent_leaves_no_engine(release: Release, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(release.folder / GGUF), str(tmp_path / "engine.log")]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(pid, 0)
    parent.kill()
    parent.wait()
    assert have_ended([pid], seconds=5)
