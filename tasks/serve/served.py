"""A release with its engine: started, proved, watched, restarted, and ended once nothing uses it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from storage.errors import ParityError
from tasks.serve.access import Price
from tasks.serve.config import ModelConfig
from tasks.serve.engines.protocol import Engine, EngineFault, Sampling
from tasks.serve.proof import ServedProof, check_served
from tasks.serve.release import Release
from tasks.serve.turns import Turns

POLL_SECONDS = 0.2
MEASURED = 32  # tokens of an answer by which the pace is measured
LONGEST_PAUSE = 30.0  # seconds between two attempts to restart an engine


@dataclass
class Served:
    """A release that answers. `proof` compares the engine's probabilities with those of the release's proof."""

    name: str
    release: Release
    format: str
    engine: Engine
    turns: Turns
    context: int
    model: ModelConfig
    price: Price
    adapter: str | None = None  # over the release of `base`, whose engine it shares
    base: Served | None = None
    proof: ServedProof | None = None
    answers: bool = False
    restarts: int = 0
    users: int = 0
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def digest(self) -> str:
        """What `system_fingerprint` shows."""
        return self.release.digest

    @property
    def ready(self) -> bool:
        """Whether the engine answers."""
        return self.base.ready if self.base is not None else self.answers

    async def start(self) -> None:
        """Start the engine and compare it with the release's proof. Raises EngineFault and ParityError."""
        await self.engine.start()
        self.proof = await check_served(self.engine, self.release.parity, self.format)
        self.answers = True

    async def supervise(self, changed: Callable[[Served], None], ready_seconds: float) -> None:
        """Until cancelled: restart the engine when it ends or no longer answers, and report each change of `ready`."""
        pause, next_check = 1.0, time.monotonic() + ready_seconds
        while True:
            await asyncio.sleep(POLL_SECONDS)
            sound = self.engine.alive
            if sound and time.monotonic() >= next_check:
                sound = await self._answers(ready_seconds)
                next_check = time.monotonic() + ready_seconds
            if sound:
                pause = 1.0
                continue
            self.answers = False
            changed(self)
            try:
                await self.start()
                self.restarts += 1
            except (EngineFault, ParityError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            changed(self)
            next_check = time.monotonic() + ready_seconds

    async def _answers(self, seconds: float) -> bool:
        """Whether the engine gives a token in time. While it is busy with requests, only whether it counts them."""
        try:
            if self.turns.running:
                await asyncio.wait_for(self.engine.running(), seconds)
            else:
                await asyncio.wait_for(self.engine.next_token(self.release.text_ids("a"), 1), seconds)
        except (EngineFault, TimeoutError):
            return False
        return True

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
        self.answers = False
        await self.engine.stop()

    async def pace(self) -> tuple[float, float]:
        """Tokens a second of prompts, and of answers with all slots busy, measured by short requests."""
        prompt = (self.release.text_ids("a b c d e f g h ") * 64)[: min(256, self.context - MEASURED - 1)]
        asked = Sampling(max_tokens=MEASURED, temperature=1.0)
        began = time.monotonic()
        await self.engine.next_token(prompt, 1)
        read = time.monotonic()
        counts = await asyncio.gather(*(self._drawn(prompt[:4], asked) for _ in range(self.turns.slots)))
        return len(prompt) / (read - began), sum(counts) / (time.monotonic() - read)

    async def _drawn(self, prompt: list[int], asked: Sampling) -> int:
        return sum([len(piece.ids) or 1 async for piece in self.engine.generate(prompt, asked)])
