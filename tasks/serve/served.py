"""A release with its engine: started, proved, watched, restarted, and ended once nothing uses it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

from storage.errors import ParityError
from tasks.serve.access import Price
from tasks.serve.config import ModelConfig
from tasks.serve.engines.protocol import Engine, EngineFault, Sampling
from tasks.serve.proof import ServedProof, check_served
from tasks.serve.release import Release
from tasks.serve.turns import Turns
from tasks.serve.watch import Health

POLL_SECONDS = 0.2
ROUNDS, MEASURED = 3, 32  # tokens of an answer by which the pace is measured
SILENT_SECONDS = 120.0  # without a token, after which an engine that runs is restarted
LONGEST_PAUSE = 30.0  # seconds between two attempts to restart an engine

log = logging.getLogger("gristmill.serve")


@dataclass
class Served:
    """A release that answers. `proof` compares the engine's probabilities with those of the release's proof."""

    name: str
    release: Release
    format: str
    engine: Engine
    turns: Turns
    grammar_turns: Turns
    health: Health
    context: int
    model: ModelConfig
    price: Price
    adapter: str | None = None  # over the release of `base`, whose engine it shares
    base: Served | None = None
    proof: ServedProof | None = None
    users: int = 0
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def apart(self) -> Release:
        """The release with a tokenizer of its own, for another thread. transformers keeps settings of a call, such as
        whether special tokens are split, in the tokenizer itself."""
        return replace(self.release)

    @property
    def digest(self) -> str:
        """What `system_fingerprint` shows."""
        return self.release.digest

    @property
    def ready(self) -> bool:
        """Whether the engine answers."""
        return self.health.ready

    def turns_for(self, sampling: Sampling) -> Turns:
        """The queue of a request."""
        apart = sampling.grammar is not None and "grammar_apart" in self.engine.features
        return self.grammar_turns if apart else self.turns

    async def start(self) -> None:
        """Start the engine and compare it with the release's proof. Raises EngineFault and ParityError."""
        await self.engine.start()
        if self.format:  # a server elsewhere doesn't say which format it holds
            self.proof = await check_served(self.engine, self.release.parity, self.format)
        await self.health.check()

    async def supervise(self, restarted: Callable[[], None]) -> None:
        """Until cancelled: restart the engine when its process ends, or hasn't answered for long."""
        pause, silent_since = 1.0, time.monotonic()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self.health.ready:
                pause, silent_since = 1.0, time.monotonic()
            if self.engine.alive and time.monotonic() - silent_since < SILENT_SECONDS:
                continue
            self.health.gone()
            try:
                await self.start()
                restarted()
            except (EngineFault, ParityError) as error:
                log.error("%s: %s", self.name, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            silent_since = time.monotonic()

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """Keeps the engine running within the block, even once another release has its name."""
        owner = self.base or self
        owner.users += 1
        try:
            yield
        finally:
            owner.users -= 1

    async def end(self, drain_seconds: float = 0.0) -> None:
        """End the engine once its requests are answered, or the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_seconds):
                while self.users:
                    await asyncio.sleep(POLL_SECONDS / 4)
        await self.health.stop()
        await self.engine.stop()

    async def pace(self) -> tuple[float, float]:
        """Tokens a second of prompts, and of answers with all slots busy: the fastest of some short rounds, as a busy
        machine is slower."""
        rounds = [await self._round() for _ in range(ROUNDS)]
        return max(read for read, _ in rounds), max(written for _, written in rounds)

    async def _round(self) -> tuple[float, float]:
        prompt = (self.release.text_ids("a b c d e f g h ") * 64)[: min(256, self.context - MEASURED - 1)]
        asked = Sampling(max_tokens=MEASURED, temperature=1.0)
        began = time.monotonic()
        await self.engine.next_token(prompt, 1)
        read = time.monotonic()
        counts = await asyncio.gather(*(self._drawn(prompt[:4], asked) for _ in range(self.turns.slots)))
        return len(prompt) / (read - began), sum(counts) / (time.monotonic() - read)

    async def _drawn(self, prompt: list[int], asked: Sampling) -> int:
        return sum([len(piece.ids) or 1 async for piece in self.engine.generate(prompt, asked)])
