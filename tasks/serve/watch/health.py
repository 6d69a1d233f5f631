"""Whether an engine answers: the logic of /ready. /health needs none, as a process that answers it is alive.

An engine is ready only if a token came from it within the last FRESH_SECONDS, for a user or for a check that asks for
one. A counter or a port that answers proves nothing: vLLM's /health said 200 over dead workers (vllm#16259).

A dead engine refuses the next check at once, so its readiness falls within FRESH_SECONDS. A stuck one, or one so busy
that no user gets a token either, falls after `within` more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from tasks.serve.engines.protocol import Engine, EngineFault, EngineRefusal, Sampling
from tasks.serve.watch.config import HealthConfig

FRESH_SECONDS = 1.0
PROBE = Sampling(max_tokens=1, temperature=0.0)
log = logging.getLogger("gristmill.serve.health")


@dataclass(frozen=True)
class Readiness:
    """The result of a check. `reason` is empty if the engine is ready, and otherwise says why not. `slow`: it may only
    be busy with long prompts."""

    ready: bool
    reason: str = ""
    seconds: float = 0.0  # that the token took
    slow: bool = False

    def as_json(self) -> dict[str, Any]:
        """The body of /ready."""
        return {"ready": self.ready, **({"reason": self.reason} if self.reason else {}), "seconds": self.seconds}


class Health:
    """The readiness of one engine. `prompt` are token ids that it is asked to continue, `changed` is called with each
    change."""

    def __init__(
        self, engine: Engine, prompt: Sequence[int], config: HealthConfig, changed: Callable[[bool], None]
    ) -> None:
        self._engine, self._prompt, self._config, self._changed = engine, prompt, config, changed
        self._last, self._at = Readiness(False, "the engine has not been checked yet"), float("-inf")
        self._probe: asyncio.Task[Readiness] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether the last check passed."""
        return self._last.ready

    @property
    def takes_requests(self) -> bool:
        """Whether the engine is ready, or may be busy: then requests wait."""
        return self._last.ready or self._last.slow

    def token(self) -> None:
        """A token came from the engine, for a user."""
        if self._last.slow:
            self._set(Readiness(True))
        elif self._last.ready:  # what was once found dead must pass a check: a token may have been on its way
            self._at = time.monotonic()

    def gone(self, reason: str = "the engine has ended") -> None:
        """The engine's process has ended. Readiness falls at once."""
        self._set(Readiness(False, reason))

    async def check(self) -> Readiness:
        """Whether the engine is ready. Asks it unless a token came within the last second. Calls at the same time share
        one check."""
        if time.monotonic() - self._at < FRESH_SECONDS:
            return self._last
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._ask())
        return await asyncio.shield(self._probe)

    def start(self) -> None:
        """Check in the background, so that metrics know without being asked."""
        self._task = asyncio.create_task(self._keep_checking())

    async def stop(self) -> None:
        """End the checks."""
        tasks = [task for task in (self._task, self._probe) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_checking(self) -> None:
        while True:
            check = asyncio.ensure_future(self.check())
            await asyncio.wait([check])
            if error := check.exception():  # a bug: the checks go on
                log.error("the check of the engine failed", exc_info=error)
                self.gone("the check failed")
            await asyncio.sleep(self._config.every)

    async def _ask(self) -> Readiness:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._config.within):
                await self._one_token()
            found = Readiness(True, seconds=round(time.monotonic() - began, 4))
        except TimeoutError:
            found = Readiness(False, f"the engine gave no token within {self._config.within:g} s", slow=True)
        except (EngineFault, EngineRefusal) as error:
            found = Readiness(False, f"the engine does not answer ({type(error).__name__})")
        self._set(found)
        return found

    async def _one_token(self) -> None:
        pieces = self._engine.generate(self._prompt, PROBE)
        async with aclosing(pieces):
            async for _ in pieces:
                return
        raise EngineFault("no piece")

    def _set(self, found: Readiness) -> None:
        if found.ready != self._last.ready:
            log.log(logging.INFO if found.ready else logging.ERROR, found.reason or "the engine is ready")
            self._changed(found.ready)
        self._last, self._at = found, time.monotonic()
