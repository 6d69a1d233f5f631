"""llama.cpp follows schemas and grammars, and its process ends with its parent."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from models.runtimes.llama_server import LlamaServerSpec
from tasks.serve.engines.llama_cpp import LlamaCppEngine
from tasks.serve.engines.protocol import EngineRefusal, Sampling
from tasks.serve.release import Release
from tests.ended import have_ended
from tests.tasks.serve.tiny_release import GGUF, make_release

ROOT = Path(__file__).parents[4]
ASKED = [{"role": "user", "content": "Where does the fox live?"}]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return Release("tiny", make_release(tmp_path_factory.mktemp("engine")), "", {})


def test_answers_follow_a_schema_or_a_grammar(release: Release, tmp_path: Path) -> None:
    async def live() -> None:
        engine = LlamaCppEngine(LlamaServerSpec(str(release.folder / GGUF), "", 128, 1, 1), tmp_path / "engine.log")
        await engine.start()

        async def answered(**sampling: Any) -> str:
            pieces = engine.generate(release.chat_ids(ASKED), Sampling(60, temperature=0, **sampling))
            return "".join([piece.text async for piece in pieces])

        try:
            schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
            assert (await answered(json_schema=schema)).lstrip().startswith("{")
            assert await answered(grammar='root ::= "owl"') == "owl"
            for grammar, fault in (
                ("root ::= ((", "expecting ')'"),
                ("root ::= nothing", "Undefined rule identifier 'nothing'"),
                ('stem ::= "a"', "it has no rule `root`"),
            ):
                with pytest.raises(EngineRefusal, match=f"The grammar is not valid: {re.escape(fault)}"):
                    await answered(grammar=grammar)
        finally:
            await engine.stop()

    asyncio.run(live())


PARENT = """
import asyncio, sys
from pathlib import Path
from models.runtimes.llama_server import LlamaServerSpec
from tasks.serve.engines.llama_cpp import LlamaCppEngine
async def main():
    engine = LlamaCppEngine(LlamaServerSpec(sys.argv[1], "", 64, 1, 1), Path(sys.argv[2]))
    await engine.start()
    print(engine.pid, flush=True)
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
