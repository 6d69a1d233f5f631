"""One worker of a sandbox: a process that forks a new one for each program (inside/zygote.py)."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from storage.errors import LostWorker
from tasks.sandbox.config import Isolation, SandboxConfig
from tasks.sandbox.inside.settings import Settings, receive, send
from tasks.sandbox.program import LONGEST, Outcome, Program

MB = 1_000_000
ATTEMPTS = 2  # at a program whose supervisor failed: the kernel may have run short of a resource
LATE = 60.0  # seconds beyond the program's own before a silent worker is given up
# The sandbox's parent packages are created empty here, as their own __init__ would import pydantic
START = """
import sys, types
root, descriptor = sys.argv[1:]
for name in ("tasks", "tasks.sandbox"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [f"{root}/{name.replace('.', '/')}"]
del sys.argv[:], sys.orig_argv[:], root, name
from tasks.sandbox.inside.zygote import serve
serve(int(descriptor)).begin()
"""
# With one arena: by default glibc reserves 64 MB of address space for each thread
ENVIRONMENT = {"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1"}
ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Means:
    """The means of isolation in use. The limits of time, memory and files always apply."""

    namespaces: bool
    landlock: bool
    seccomp: bool

    @property
    def isolation(self) -> Isolation:
        """The level that these means amount to."""
        return "namespaces" if self.namespaces else "filters" if self.landlock and self.seccomp else "limits"


class Refused(Exception):
    """The kernel refused one of the means."""


class Worker:
    """A context in which programs run, one at a time. Entering it raises Refused if the kernel refuses."""

    def __init__(self, config: SandboxConfig, means: Means) -> None:
        self.config, self.means = config, means

    def __enter__(self) -> Worker:
        self._channel, other = socket.socketpair()
        self._channel.settimeout(self.config.seconds + LATE)
        self._folder = "" if self.means.namespaces else tempfile.mkdtemp(prefix="gristmill-sandbox-")
        # -P -s -S and an empty environment isolate as -I does, but keep PYTHONHASHSEED, which -I ignores: with random
        # hashes, sets of strings would have another order in each worker, and programs another outcome
        command = [sys.executable, "-P", "-s", "-S", "-c", START, str(ROOT), str(other.fileno())]
        self._process = subprocess.Popen(
            command,
            env=ENVIRONMENT,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[other.fileno()],
            start_new_session=True,
        )
        other.close()
        with ExitStack() as cleanup:
            cleanup.callback(self.close)
            try:
                send(self._channel, asdict(self._settings()))
                answer = receive(self._channel)
            except OSError as error:
                raise Refused("its process did not start") from error
            if answer is None or answer["error"]:
                raise Refused(answer["error"] if answer else "its process did not start")
            cleanup.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _settings(self) -> Settings:
        paths = sysconfig.get_paths()
        packages = tuple(dict.fromkeys((paths["purelib"], paths["platlib"]))) if self.config.packages else ()
        return Settings(
            self.means.namespaces,
            self.means.landlock,
            self.means.seccomp,
            self.config.seconds,
            self.config.memory_mb * MB,
            self.config.files_mb * MB,
            self.config.open_files,
            self.config.threads,
            packages,
            self._folder,
        )

    def run(self, program: Program) -> Outcome:
        """Run one program and its tests. Raises LostWorker when the worker was killed or could not watch the program,
        which doesn't count as a failure of the program."""
        isolation = self.means.isolation
        if len(program.text) + len(program.tests) > LONGEST:
            return Outcome("refused", isolation, message=f"longer than {LONGEST:,} characters")
        for _ in range(ATTEMPTS):
            try:
                send(self._channel, [program.text, program.tests])
                answer = receive(self._channel) or {"lost": "it was killed"}
            except OSError:
                answer = {"lost": "it was killed"}
            if "lost" not in answer:
                break
        else:
            raise LostWorker(
                f"A worker of the sandbox failed: {answer['lost']}.",
                "Run again, with fewer workers if memory or processes ran short.",
            )
        return Outcome(isolation=isolation, **answer)

    def stop(self) -> None:
        """End the running program, from another thread: the worker sees its socket close."""
        with suppress(OSError):  # already ended
            self._channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the worker and every process that it started, and wait for them."""
        self.stop()
        self._channel.close()
        self._process.wait()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
