"""A release with its engine: started, proved, watched, restarted, and ended once nothing uses it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tasks.serve.access import Price
from tasks.serve.engines.protocol import Engine, EngineFault
from tasks.serve.proof import ServedProof, check_served
from tasks.serve.release import Release
from tasks.serve.turns import Turns

POLL_SECONDS = 0.2
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
    price: Price
    proof: ServedProof | None = None
    ready: bool = False
    restarts: int = 0
    users: int = 0
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def digest(self) -> str:
        """What `system_fingerprint` shows."""
        return self.release.digest

    async def start(self) -> None:
        """Start the engine and compare it with the release's proof. Raises EngineFault and ParityError."""
        await self.engine.start()
        self.proof = await check_served(self.engine, self.release.parity, self.format)
        self.ready = True

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
            self.ready = False
            changed(self)
            try:
                await self.start()
                self.restarts += 1
            except EngineFault:
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
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1

    async def end(self, drain_seconds: float = 0.0) -> None:
        """End the engine once its requests are answered, or the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_seconds):
                while self.users:
                    await asyncio.sleep(POLL_SECONDS / 4)
        self.ready = False
        await self.engine.stop()
