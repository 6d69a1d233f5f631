"""What a request may ask of llama.cpp by a schema or a grammar, which are programs of a user, without harm to others.

llama.cpp follows both between the tokens of all requests. A schema is read by a process of its own first, which bounds
what it costs. A grammar can't be bounded so: an ambiguous one takes forever or all memory after any number of tokens.
So answers by a grammar come from a second llama.cpp, one at a time. It maps the same file, so it costs the memory of
one slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol

from tasks.children.die_with_parent import tied_to
from tasks.serve.engines.protocol import Engine, EngineFault, EngineRefusal, Piece, Sampling

START_SECONDS, CHECK_SECONDS = 60.0, 2.0  # for the process that reads schemas, and for a schema
WAIT_SECONDS = 5.0  # for an answer by a grammar, and more for each token of its prompt and of its own
READ_SECONDS, WRITE_SECONDS = 0.05, 1.0
CALM_SECONDS = 1.0  # for an engine to say that it works on nothing
MEMORY = 1 << 30  # bytes that a grammar may take
FAULT = re.compile(r"error parsing grammar: (.*?)(?: at)? *$", re.MULTILINE)  # in llama.cpp's log only


class Schemas:
    """Reads schemas in a process, which is started again when one ends it."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def check(self, schema: Mapping[str, Any]) -> None:
        """Raises EngineRefusal for a schema that llama.cpp can't follow."""
        async with self._turn:
            if self._process is None:
                self._process = await self._start()
            reason = await self._answer(json.dumps(schema).encode() + b"\n", CHECK_SECONDS)
        if reason is not None:
            raise EngineRefusal(f"The schema can't be followed: {reason.rstrip('.')}.")

    async def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *tied_to(os.getpid(), [sys.executable, "-m", "models.runtimes.llama_schema"]),
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            start_new_session=True,
        )
        if (reason := await self._answer(b"true\n", START_SECONDS)) is not None:
            raise EngineFault(f"The process that reads schemas doesn't start: {reason}.")
        return self._process

    async def _answer(self, line: bytes, seconds: float) -> str | None:
        """What is wrong with a schema. Without an answer, the process is ended."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        answer = b""
        try:
            async with asyncio.timeout(seconds):
                process.stdin.write(line)
                answer = await process.stdout.readline()
        except (TimeoutError, ConnectionError):
            return "it takes too long to read"
        finally:
            if not answer.endswith(b"\n"):
                await self.stop()
        if not answer:
            return "it is nested too deep, or too large"
        reason: str | None = json.loads(answer)
        return reason


class Child(Engine, Protocol):
    """An engine that is a process of its own, which writes to `log`."""

    log: Path

    @property
    def pid(self) -> int:
        """The process."""
        ...

    async def stop(self, patience: float = 0.0) -> None:
        """End it, by force after `patience` seconds."""
        ...


class Apart:
    """Answers by grammars. `engine` has one slot, and is started by the first of them."""

    def __init__(self, engine: Child) -> None:
        self._engine = engine
        self._turn = asyncio.Lock()
        self._calming: asyncio.Task[None] | None = None

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """See `Engine`. Raises EngineRefusal for a grammar that takes too long, or of which llama.cpp dies."""
        async with self._turn:
            if not self._engine.alive:
                await self._engine.start()
                _bound_memory(self._engine.pid)
            log = self._engine.log
            logged = log.stat().st_size
            clock, finished = asyncio.get_running_loop().time, False
            until = clock() + WAIT_SECONDS + READ_SECONDS * len(ids)
            try:
                async with aclosing(self._engine.generate(ids, sampling)) as pieces:
                    while not finished:
                        async with asyncio.timeout_at(until):
                            piece = await anext(pieces)
                        finished, until = piece.finish is not None, until + WRITE_SECONDS
                        yield piece
            except TimeoutError as error:
                await self._engine.stop(0)
                raise EngineRefusal("The grammar takes too long for a token.") from error
            except EngineRefusal as error:
                if "grammar" not in str(error):
                    raise
                fault = FAULT.search(log.read_bytes()[logged:].decode(errors="replace"))
                reason = fault[1] if fault else "it has no rule `root`, or a rule begins with itself"
                raise EngineRefusal(f"The grammar is not valid: {reason}.") from error
            except EngineFault as error:
                await self._engine.stop(0)
                raise EngineRefusal("llama.cpp fails at the grammar.") from error
            finally:
                if not finished:
                    self._calming = asyncio.create_task(self._calm())

    async def stop(self) -> None:
        """End the engine."""
        if self._calming is not None:
            self._calming.cancel()
        await self._engine.stop()

    async def _calm(self) -> None:
        """End an engine that works on after its client left."""
        async with self._turn:
            try:
                async with asyncio.timeout(CALM_SECONDS):
                    while self._engine.alive and await self._engine.running():
                        await asyncio.sleep(CALM_SECONDS / 20)
            except (TimeoutError, EngineFault):
                await self._engine.stop(0)


def _bound_memory(pid: int) -> None:
    """Let a process take MEMORY more than it has."""
    fields = Path(f"/proc/{pid}/status").read_text().splitlines()
    now = next(int(line.split()[1]) * 1024 for line in fields if line.startswith("VmData"))
    resource.prlimit(pid, resource.RLIMIT_DATA, (now + MEMORY, now + MEMORY))
