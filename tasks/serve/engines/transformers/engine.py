"""A release's safetensors by transformers, in a supervised child.

A request is a connection to its socket: a line of JSON asks, and a line comes for each piece of the answer. Closing the
connection aborts it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from tasks.children.environment import training_environment
from tasks.serve.engines.process import STOP_SECONDS, ChildEngine, EngineProcess
from tasks.serve.engines.protocol import EngineFault, EngineRefusal, Piece, Sampling, TokenChoice
from tasks.stage.runtime import ComputeRuntime

LONGEST_LINE = 16 << 20  # bytes


@dataclass(frozen=True)
class TransformersSpec:
    """A model folder and how it is served. `context` is in tokens per request, of which `slots` are answered at a
    time."""

    folder: str
    socket: str
    context: int
    slots: int
    threads: int

    def as_json(self) -> str:
        """The argument of the process."""
        return json.dumps(asdict(self))


class TransformersEngine(ChildEngine):
    """A model folder, with the virtual tokens beside it, if any."""

    name = "transformers"
    features = frozenset({"ids", "logprobs", "prompt_logprobs"})

    def __init__(self, spec: TransformersSpec, log: Path) -> None:
        self._spec = spec
        environment = training_environment(ComputeRuntime(threads=spec.threads))  # made for torch, not for training
        self._process = EngineProcess(self.name, "tasks.serve.engines.transformers.server", log, environment)

    async def start(self) -> None:
        await self.stop()
        await self._process.start(lambda socket: replace(self._spec, socket=socket).as_json())

    async def stop(self, patience: float = STOP_SECONDS) -> None:
        await self._process.stop(patience)

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        for name in ("json_schema", "grammar", "adapter"):
            if getattr(sampling, name) is not None:
                raise EngineRefusal(f"This model is served by transformers, which takes no {name.replace('_', ' ')}.")
        async with aclosing(self._ask({"prompt": list(ids), "sampling": asdict(sampling)})) as events:
            async for event in events:
                if "prompt" in event:
                    yield Piece("", prompt=tuple(event["prompt"]))
                    continue
                choices = tuple(
                    TokenChoice(text, logprob, tuple((text, logprob) for _, text, logprob in top))
                    for text, logprob, top in event["choices"]
                )
                yield Piece(event["text"], tuple(event["ids"]), choices, event["finish"], event["stop"])
                if event["finish"]:
                    return

    async def running(self) -> int:
        async with aclosing(self._ask({"running": True})) as events:
            return int((await anext(events))["running"])

    async def next_token(self, ids: Sequence[int], count: int, adapter: str | None = None) -> list[tuple[int, float]]:
        sampling = Sampling(max_tokens=1, temperature=0.0, logprobs=count, adapter=adapter)
        async with aclosing(self._ask({"prompt": list(ids), "sampling": asdict(sampling)})) as events:
            ((_, _, top),) = (await anext(events))["choices"]
        return [(id, logprob) for id, _, logprob in top]

    async def embed(self, ids: Sequence[int]) -> list[float]:
        raise EngineRefusal("transformers serves this model for text, not for embeddings.")

    async def _ask(self, asked: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The lines of an answer. Close the iterator to abort it. Raises EngineFault and EngineRefusal."""
        if not self.alive:
            raise EngineFault("transformers isn't running.")
        try:
            reader, writer = await asyncio.open_unix_connection(self._process.socket, limit=LONGEST_LINE)
            try:
                writer.write(orjson.dumps(asked) + b"\n")
                while line := await reader.readline():
                    event = orjson.loads(line)
                    if "refused" in event:
                        raise EngineRefusal(event["refused"])
                    if "failed" in event:
                        raise EngineFault(event["failed"])
                    yield event
            finally:
                writer.transport.abort()  # at once: what is left of an aborted answer is of no use
        except OSError as error:
            raise EngineFault(f"transformers doesn't answer ({type(error).__name__}).") from error
        raise EngineFault("transformers doesn't answer: it ended before its answer did.")
