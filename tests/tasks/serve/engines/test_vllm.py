"""vLLM, for real: where `vllm` is on the path, or the environment variable GRISTMILL_VLLM names the command."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from models.tokenizer import load_tokenizer
from tasks.children.reap_orphans import descendants
from tasks.serve.engines import group
from tasks.serve.engines.protocol import EngineFault, EngineRefusal, Sampling
from tasks.serve.engines.vllm import VllmConfig, VllmEngine
from tests.ended import have_ended
from tests.tasks.serve.engines.servers import text_of

PROGRAM = os.environ.get("GRISTMILL_VLLM") or shutil.which("vllm")
needs_vllm = pytest.mark.skipif(PROGRAM is None, reason="vllm is not on the path, and GRISTMILL_VLLM doesn't name it")
# A command with a child that doesn't end with it, whose pid it prints
FAMILY = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); time.sleep(60)"


@pytest.fixture(autouse=True)
def _of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")


@pytest.mark.parametrize("killed", ["the command", "the starting process"])
def test_a_group_ends_with_its_command_and_with_who_started_it(killed: str) -> None:
    command = group.command(5, sys.executable, "-c", FAMILY)
    starts = f"import subprocess; p = subprocess.Popen({command!r}, stdin=subprocess.PIPE); print(p.pid, flush=True); "
    starts += "import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", starts], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        guard, orphan = sorted(int(starter.stdout.readline()) for _ in range(2))
        everyone = [pid for pid, _ in descendants(starter.pid)]
        assert {guard, orphan} <= set(everyone)
        (server,) = (pid for pid, _ in descendants(guard) if pid != orphan)
        if killed == "the command":
            os.kill(server, signal.SIGKILL)
            assert have_ended([guard, server, orphan])
        starter.kill()
        assert have_ended(everyone)


def test_a_group_passes_on_term_and_the_exit_code() -> None:
    script = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print(1, flush=True)"
    script += "; time.sleep(60)"
    command = group.command(5, sys.executable, "-c", script)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    time.sleep(0.2)
    assert process.poll() is None, "it decides by stdin"
    process.communicate()
    assert process.returncode == 7


def test_a_start_that_fails_says_why(proved_release: Path, tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\necho starting\necho 'ValueError: no such device' >&2\nexit 3\n")
    program.chmod(0o700)

    async def start(**config: object) -> None:
        await VllmEngine(proved_release, tmp_path / "state", VllmConfig.model_validate(config)).start()

    with pytest.raises(EngineFault, match=r"(?s)ended with code 3\..*ValueError: no such device.*vllm\.log"):
        asyncio.run(start(program=str(program)))
    program.write_text("#!/bin/sh\nsleep 60\n")
    with pytest.raises(EngineFault, match=r"didn't start in 0\.01 min"):
        asyncio.run(start(program=str(program), start_minutes=0.01))
    with pytest.raises(EngineFault, match="ended with code"):
        asyncio.run(start(program=str(tmp_path / "nothing")))
    for taken in ("--port=80", "--trust_remote_code"):
        with pytest.raises(ValidationError, match="can't be set"):
            VllmConfig(arguments=(taken,))


@needs_vllm
def test_vllm_serves_what_was_released(proved_release: Path, tmp_path: Path) -> None:
    import json

    from tasks.serve.proof import check_served

    tokenizer, parity = load_tokenizer(proved_release), json.loads((proved_release / "parity.json").read_text())
    ids, said = tokenizer.encode("The fox lives in the"), list[str]()
    config = VllmConfig(program=str(PROGRAM), dtype="float32", arguments=("--enforce-eager",))
    engine = VllmEngine(proved_release, tmp_path, config, context=128, say=said.append)

    async def use() -> None:
        await engine.start()
        try:
            await _answers()
            await _stops_when_closed()
            await _dies_whole()
        finally:
            await engine.stop()

    async def _answers() -> None:
        assert said[-1].startswith("vLLM answers, after")
        proof = await check_served(engine, parity, "safetensors")
        assert proof.state == "proved"
        assert proof.worst < 1e-5
        text, finish, pieces = await text_of(engine.generate(ids, Sampling(max_tokens=12, temperature=0, logprobs=3)))
        found = [id for piece in pieces for id in piece.ids]
        assert tokenizer.decode(found).startswith(text)
        assert (finish, len(found)) == ("length", 12)
        assert found[:1] == [(await engine.next_token(ids, 1))[0][0]]
        counts = [len(choice.top) for piece in pieces for choice in piece.choices]
        assert len(counts) == 12
        assert max(counts) == 3, "vLLM names alternatives by their text, and some share one"
        says = await text_of(engine.generate(ids, Sampling(max_tokens=9, grammar='root ::= "yes" | "no"')))
        assert says[0] in ("yes", "no")
        says = await text_of(engine.generate(ids, Sampling(max_tokens=9, json_schema={"const": "owl"})))
        assert says[0].strip() == '"owl"'
        for wrong in (Sampling(max_tokens=4, grammar="root ::= nothing"), Sampling(max_tokens=5000)):
            with pytest.raises(EngineRefusal):
                await text_of(engine.generate(ids, wrong))

    async def _stops_when_closed() -> None:
        answer = engine.generate(ids, Sampling(max_tokens=100))
        await anext(answer)
        assert await engine.running() == 1
        await answer.aclose()
        deadline = time.monotonic() + 1
        while await engine.running():
            assert time.monotonic() < deadline

    async def _dies_whole() -> None:
        assert engine._process is not None
        processes = [pid for pid, _ in descendants(engine._process.pid)]
        assert len(processes) >= 3, "the server, its core and its worker"
        os.kill(min(processes), signal.SIGKILL)
        assert have_ended(processes)
        with pytest.raises(EngineFault, match="doesn't answer"):
            await engine.next_token(ids, 1)

    asyncio.run(use())


@needs_vllm
@pytest.mark.soak
@pytest.mark.parametrize("format", ["gptq", "w4a16", "awq", "w8a8"])
def test_vllm_serves_every_format_that_is_for_it(format: str, tmp_path: Path) -> None:
    import json

    from tasks.serve.proof import check_served
    from tests.tasks.export.test_export import inputs, run

    given = inputs(tmp_path, width=256, heads=4)
    folder = run(tmp_path / "release", given, formats=["safetensors", format]).path
    parity = json.loads((folder / "parity.json").read_text())
    config = VllmConfig(program=str(PROGRAM), arguments=("--enforce-eager",))
    engine = VllmEngine(folder / format, tmp_path / "state", config, context=128)

    async def use() -> None:
        await engine.start()
        try:
            assert (await check_served(engine, parity, format)).state == "proved"
        finally:
            await engine.stop()

    asyncio.run(use())


@needs_vllm
@pytest.mark.soak
def test_vllm_serves_adapters_by_name_over_one_base(tmp_path: Path) -> None:
    from models.runtimes.transformers import TransformersRuntime
    from tests.tasks.export.test_adapter import FIRST, SECOND, adapt
    from tests.tasks.tiny_model import make_model

    base = make_model(tmp_path / "base", heads=2)
    folders = {name: adapt(base, tmp_path / name, kind, 1) for name, kind in (("one", FIRST), ("two", SECOND))}
    config = VllmConfig(program=str(PROGRAM), dtype="float32", arguments=("--enforce-eager",))
    adapters = {name: folder / "adapter" for name, folder in folders.items()}
    engine = VllmEngine(base, tmp_path / "state", config, context=128, adapters=adapters)
    ids = load_tokenizer(base).encode("The fox lives in the")
    expected = {
        name: TransformersRuntime(folder).log_probabilities(ids)
        for name, folder in {"": base, **{name: folder / "model" for name, folder in folders.items()}}.items()
    }

    async def use() -> None:
        await engine.start()
        try:
            for name, logs in expected.items():
                sampling = Sampling(max_tokens=1, temperature=0, logprobs=1, adapter=name or None)
                pieces = [piece async for piece in engine.generate(ids, sampling)]
                (drawn,) = [id for piece in pieces for id in piece.ids]
                assert drawn == logs.argmax()
                assert pieces[0].choices[0].logprob == pytest.approx(logs.max(), abs=1e-3)
        finally:
            await engine.stop()

    assert len({tuple(logs.argsort()[::-1][:5]) for logs in expected.values()}) == 3
    asyncio.run(use())


@needs_vllm
@pytest.mark.soak
def test_a_draft_guesses_in_vllm_and_changes_no_text(proved_release: Path, tmp_path: Path) -> None:
    config = VllmConfig(program=str(PROGRAM), dtype="float32", arguments=("--enforce-eager",), guesses=3)
    ids = load_tokenizer(proved_release).encode("The fox lives in the")

    async def answer(draft: Path | None) -> list[tuple[int, ...]]:
        engine = VllmEngine(proved_release, tmp_path, config, context=128, draft=draft)
        await engine.start()
        try:
            return [piece.ids async for piece in engine.generate(ids, Sampling(max_tokens=24, temperature=0))]
        finally:
            await engine.stop()

    plain, guessed = asyncio.run(answer(None)), asyncio.run(answer(proved_release))
    assert [id for piece in guessed for id in piece] == [id for piece in plain for id in piece]
    assert len(guessed) < len(plain), "several tokens at a time"
