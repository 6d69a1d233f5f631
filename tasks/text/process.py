"""A process that extracts text, and that the system ends with a document that takes too long or too much.

Extractors run in compiled code, which no thread can interrupt. So a worker has them in a process of its own, which the
system ends once a document has used its seconds of CPU. Seconds of CPU rather than of the clock, so that a busy machine
doesn't change which documents are kept. The process has a limited address space, so that a document which unpacks
without end costs only itself. It serves document after document, and is replaced only if it ended.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

from storage.errors import BadDocument, LostWorker
from tasks.children.die_with_parent import die_with_parent

PATIENCE = 20  # times the limit, by the clock, after which a process that doesn't even compute is ended
MEMORY = 3 << 30  # bytes of address space
WIDEST = 300  # characters of what a process said
_PROCESSES: dict[tuple[str, tuple[str, ...], float], ExtractorProcess] = {}


class Failed(NamedTuple):
    """Why a document wasn't read: time_over, memory_over, extractor_died with the end of what that said, or the reason
    of the reader's BadDocument."""

    reason: str
    why: str = ""


class ExtractorProcess:
    """A process that extracts, started with the first document. `module` has a function `reader`, which takes
    `arguments`, loads what it needs, and returns the function from a document to its fields."""

    def __init__(self, module: str, arguments: tuple[str, ...], seconds: float) -> None:
        self._module, self._arguments, self._seconds = module, arguments, seconds
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, document: tuple[Any, ...]) -> dict[str, Any] | Failed:
        """The fields that the reader finds, `text` among them. A document that takes too long ends the process."""
        for again in (True, False):
            if self._process is None:
                self._start()
            answered = True
            try:
                self._connection.send(tuple(document))
                answered = self._connection.poll(PATIENCE * self._seconds)
                if answered:
                    found: dict[str, Any] | tuple[str, str] = self._connection.recv()
                    return found if isinstance(found, dict) else Failed(*found)
            except (EOFError, OSError):
                pass
            status = self._end()
            if not answered or status == -signal.SIGPROF:
                return Failed("time_over")
            if status != -signal.SIGKILL or not again:
                break  # what a document does to it doesn't end in SIGKILL: that came from outside
        return Failed("extractor_died", self._said() or f"it ended with {status}")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._end()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            numbers = [str(os.getpid()), str(theirs.fileno()), str(self._seconds)]
            command = [sys.executable, "-m", "tasks.text.process", *numbers, self._module, *self._arguments]
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stderr=self._errors
            )
        self._connection = Connection(ours.detach())
        try:
            self._connection.recv()  # it has loaded what it needs
        except EOFError as error:
            self._end()
            raise LostWorker(
                f"{self._module} can't be started: {self._said()}.", "Check the installation: gristmill doctor."
            ) from error

    def _said(self) -> str:
        """The end of the last line that the process wrote."""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][-WIDEST:] if lines else ""

    def _end(self) -> int:
        """End the process. Returns its status, that of a kill if it still ran."""
        assert self._process is not None
        self._connection.close()
        try:
            status = self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._process = None
        return status


def process_of(module: str, arguments: tuple[str, ...], seconds: float) -> ExtractorProcess:
    """The process of this worker, for all its portions. It ends with the worker."""
    made = _PROCESSES.get((module, arguments, seconds))
    if made is None:
        made = _PROCESSES[module, arguments, seconds] = ExtractorProcess(module, arguments, seconds)
        Finalize(None, made.close, exitpriority=0)  # a worker ends without `atexit`. Waited for, its CPU time counts
    return made


def close_processes() -> None:
    """End this worker's processes."""
    for process in _PROCESSES.values():
        process.close()
    _PROCESSES.clear()


def main() -> None:
    """Run `python -m tasks.text.process PARENT SOCKET SECONDS MODULE ARGUMENT…`: answer until PARENT ends."""
    parent, number, seconds, module, *arguments = sys.argv[1:]
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, and the parent decides what to do
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most), most))
    read = importlib.import_module(module).reader(*arguments)
    with Connection(int(number)) as connection:
        connection.send(None)
        while True:
            try:
                document = connection.recv()
            except EOFError:
                return
            signal.setitimer(signal.ITIMER_PROF, float(seconds))  # then SIGPROF, which nothing catches, ends it
            found: dict[str, Any] | tuple[str, str]
            try:
                found = read(*document)
            except BadDocument as error:
                found = error.message, error.facts.get("why", "")
            except RecursionError:
                found = "nested_too_deep", ""
            except MemoryError:
                found = "memory_over", ""
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send(found)


if __name__ == "__main__":
    main()
