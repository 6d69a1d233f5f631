"""An engine's program as a supervised child, on a Unix socket that only this user reaches."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tasks.children.die_with_parent import tied_to
from tasks.serve.engines.protocol import EngineFault

START_SECONDS = 600.0  # for a large file on a slow disk
STOP_SECONDS = 5.0  # from SIGTERM to SIGKILL


class EngineProcess:
    """`python -m MODULE SPEC`, which prints `ready` once it listens. `name` is the engine's in errors, and what the
    program writes to stderr goes to `log`."""

    def __init__(self, name: str, module: str, log: Path, environment: Mapping[str, str] = os.environ) -> None:
        self.name, self.module, self.log, self.environment = name, module, log, environment
        self._process: asyncio.subprocess.Process | None = None
        self._folder: TemporaryDirectory[str] | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None
        return self._process.pid

    @property
    def socket(self) -> str:
        """The path of its socket."""
        assert self._folder is not None
        return f"{self._folder.name}/engine.sock"

    async def start(self, spec: Callable[[str], str]) -> None:
        """Start it with the spec for a socket, and wait until it is ready. Raises EngineFault."""
        self._folder = TemporaryDirectory(prefix="gristmill-", dir="/tmp")  # the path of a socket must be short
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *tied_to(os.getpid(), [sys.executable, "-m", self.module, spec(self.socket)]),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**self.environment, "PYTHONSAFEPATH": "1"},
                start_new_session=True,  # Ctrl-C at a terminal is for the parent, which ends this process in order
            )
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), START_SECONDS)
        except TimeoutError:
            line = b""
        if line.strip() != b"ready":
            await self.stop()
            raise EngineFault(f"{self.name} didn't start: {_last_line(self.log)}.")

    async def stop(self, patience: float = STOP_SECONDS) -> None:
        """End it, by force after `patience` seconds."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), patience)
                except TimeoutError:
                    process.kill()
                    await process.wait()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class ChildEngine:
    """What engines that run in such a child share."""

    _process: EngineProcess

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.alive

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid


def _last_line(log: Path) -> str:
    """The end of what the process wrote to its log."""
    lines = log.read_text(errors="replace").split("\n") if log.is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it gave no reason")
