"""Answers of a GGUF file, by llama.cpp's server as `gristmill serve` runs it: one slot, and a prompt of token ids."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from models.conversation import TemplateFaultError
from models.runtimes.llama_server import LlamaServerSpec
from models.runtimes.protocol import Message
from storage.errors import ConfigError, ServerError, StoreError
from tasks.export.formats import FORMATS
from tasks.serve.chat.answerer import ContextFull, Ended, Manner
from tasks.serve.engines.llama_cpp import LlamaCppEngine
from tasks.serve.engines.protocol import EngineFault, Sampling
from tasks.serve.release import Release
from tasks.stage.machine import cores


class EngineAnswerer:
    """A release in its engine. The engine's loop runs while it answers."""

    streams = True

    def __init__(self, release: Release, engine: LlamaCppEngine, about: str, runner: asyncio.Runner) -> None:
        self.release, self.engine, self.about, self._runner = release, engine, about, runner

    def answer(self, messages: Sequence[Message], manner: Manner, say: Callable[[str], None]) -> Ended:
        """Answer by the release's own template."""
        try:
            ids = self.release.chat_ids(messages)
        except TemplateFaultError as error:
            raise refused(str(error), manner) from error
        room = self.release.context - len(ids)
        if room < 1:
            raise ContextFull.of(len(ids), self.release.context)
        sampling = Sampling(min(manner.tokens, room), manner.temperature)
        try:
            return self._runner.run(self._stream(ids, sampling, say))
        except EngineFault as error:
            raise ServerError(f"The answer failed: {error}", "Ask again: the engine is restarted.") from error

    async def _stream(self, ids: list[int], sampling: Sampling, say: Callable[[str], None]) -> Ended:
        await asyncio.sleep(0)  # the loop learns that the process has ended
        if not self.engine.alive:
            await self.engine.start()
        tokens, finish = 0, None
        async with contextlib.aclosing(self.engine.generate(ids, sampling)) as pieces:
            async for piece in pieces:
                tokens, finish = tokens + len(piece.ids), piece.finish
                say(piece.text)
        return Ended(finish, tokens, len(ids))


def refused(why: str, manner: Manner) -> ConfigError:
    """The error for a conversation that a chat template refuses."""
    without = " Leave out the system prompt if its chat template doesn't support one." if manner.system else ""
    return ConfigError(f"{why}.", f"Start a new, shorter conversation.{without}")


@contextlib.contextmanager
def opened_engine(folder: Path, name: str, format: str) -> Iterator[EngineAnswerer]:
    """The engine of a release's GGUF file, running. Raises StoreError if it doesn't start."""
    release = Release(name, folder, "", {})
    spec = LlamaServerSpec(
        model=str(FORMATS[format].path(folder)), socket="", context=release.context, slots=1, threads=cores()
    )
    with TemporaryDirectory(prefix="gristmill-") as scratch, asyncio.Runner() as runner:
        engine = LlamaCppEngine(spec, Path(scratch, "engine.log"))
        try:
            runner.run(engine.start())
            yield EngineAnswerer(release, engine, f"{name}, {format}, {release.context:,} tokens of context", runner)
        except EngineFault as error:
            remedy = "Check it with `gristmill store verify`, or export it again."
            raise StoreError(str(error), remedy) from error
        finally:
            runner.run(engine.stop())
