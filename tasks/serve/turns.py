"""The queue before an engine: bounded, in order within a key, and fair between keys."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class QueueFull(Exception):
    """More requests wait than may."""


class Waited(Exception):
    """A request waited longer than it may."""


class Turns:
    """At most `slots` requests run. The others wait, at most `longest` of them. Keys take turns: one with a thousand
    requests delays another's first by one turn."""

    def __init__(self, slots: int, longest: int, seconds: float) -> None:
        self.slots, self.longest, self.seconds = slots, longest, seconds
        self.running = 0
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}  # by key, in the order of their turns
        self._ended: deque[float] = deque(maxlen=32)  # when the last turns ended

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return sum(map(len, self._queues.values()))

    def retry_after(self) -> float:
        """Seconds until a turn is likely to be free, by the pace of the last ones."""
        if len(self._ended) < 2:
            return 1.0
        pace = (self._ended[-1] - self._ended[0]) / (len(self._ended) - 1)
        return min(max(pace * (self.waiting + 1), 1.0), 60.0)

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it within the block. Raises QueueFull and Waited."""
        if self.running < self.slots and not self._queues:
            self.running += 1
        else:
            await self._wait(key)
        try:
            yield
        finally:
            self._ended.append(time.monotonic())
            self.running -= 1
            self._next()

    async def _wait(self, key: str) -> None:
        if self.waiting >= self.longest:
            raise QueueFull
        mine = asyncio.get_running_loop().create_future()
        self._queues.setdefault(key, deque()).append(mine)
        try:
            async with asyncio.timeout(self.seconds):  # wait_for would drop a cancellation that comes with the turn
                await mine
        except (TimeoutError, asyncio.CancelledError) as error:
            if mine.done() and not mine.cancelled():  # the turn came at the moment of the end: pass it on
                self.running -= 1
                self._next()
            else:
                self._remove(key, mine)
            if isinstance(error, TimeoutError):
                raise Waited from error
            raise

    def _remove(self, key: str, mine: asyncio.Future[None]) -> None:
        queue = self._queues.get(key, deque())
        if mine in queue:
            queue.remove(mine)
        if not queue:
            self._queues.pop(key, None)

    def _next(self) -> None:
        """Give free turns to the first of the queues, each of which then goes to the end of the row."""
        while self.running < self.slots and self._queues:
            key = next(iter(self._queues))
            queue = self._queues.pop(key)
            future = queue.popleft()
            if queue:
                self._queues[key] = queue
            if not future.done():
                self.running += 1
                future.set_result(None)
