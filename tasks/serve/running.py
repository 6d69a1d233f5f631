"""The models of a running server, and the tasks that watch over their engines."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field

from tasks.serve.served import Served
from tasks.serve.service import Service

Say = Callable[[str], None]


@dataclass
class Running:
    """What a server consists of. `changing` is held while a release is swapped."""

    service: Service
    say: Say
    watchers: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    ending: list[asyncio.Task[None]] = field(default_factory=list)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def watch_over(self, served: Served) -> None:
        """Check the engine of a release, and restart it when it ends."""
        served.health.start()
        restarted = functools.partial(self.service.watch.restarted, served.name)
        self.watchers[id(served)] = asyncio.create_task(served.supervise(restarted))

    async def end(self, served: Served, drain_seconds: float = 0.0) -> None:
        """Stop watching a release, and end it."""
        task = self.watchers.pop(id(served), None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await served.end(drain_seconds)
