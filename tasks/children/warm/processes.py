"""The stage's side of warm children: a server for each environment, started when it is first needed, and its children.

Children on a CPU that run `python -m MODULE` are warm. On a machine that may have a GPU, children are new processes: a
device touched before a fork is lost to the child, and libraries touch it on import. The ranks of a launcher are new
processes too.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import IO

from tasks.children.devices import missing_gpu
from tasks.children.die_with_parent import tied_to
from tasks.children.warm.server import LIBRARIES, REQUEST, TITLE
from tasks.stage import machine

MOST = 4  # servers to keep, one for each environment, of which a run has one or two
END_SECONDS = 2.0  # for a server to end when this process does
# Prefixes and a suffix of variables that libraries don't read on import: each child gets them, its server never does
OWN, SECRET = ("GRISTMILL_", "PREFECT_", "PYTEST_CURRENT_"), "_API_KEY"


class CannotFork(Exception):
    """This child can't be a fork, and must be a new Python process."""


class ServerLost(Exception):
    """The server was killed, and the child with it."""


class Forked:
    """A child, with as much of subprocess.Popen as its stage needs."""

    def __init__(self, reports: socket.socket, stdout: IO[bytes]) -> None:
        self._reports, self.stdout = reports, stdout
        self.returncode: int | None = None
        self.lost = False  # with its server
        with contextlib.ExitStack() as on_error:
            for end in (reports, stdout):
                on_error.callback(end.close)  # tells the server that nobody waits for the child
            self.pid = int(self._hear()["pid"])
            on_error.pop_all()

    def _hear(self) -> dict[str, float]:
        try:
            message = self._reports.recv(1 << 10)
        except ConnectionResetError:
            message = b""
        if not message:
            raise ServerLost
        fields: dict[str, float] = json.loads(message)
        return fields

    def poll(self) -> int | None:
        """Its exit code, or the negative number of the signal that ended it. None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Returns the same exit code as `poll`. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._reports, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0)
            try:
                report = self._hear()
                self.returncode = int(report["code"])
                machine.add_worker(report["cpu_seconds"], int(report["peak"]))  # the system attributes it to the server
            except ServerLost:
                self.returncode, self.lost = -9, True
            self._reports.close()
        return self.returncode


class _Keeper:
    """The thread that starts servers. PR_SET_PDEATHSIG ends a process with the *thread* that started it, so this one
    lives as long as the process does. A pool's thread may end while other threads still run a stage."""

    def __init__(self) -> None:
        self._requests = queue.SimpleQueue[
            tuple[Future[subprocess.Popen[bytes]], Callable[[], subprocess.Popen[bytes]]]
        ]()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def start(self, make: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Call `make` in that thread, and return the process that it starts. One caller at a time (_LOCK)."""
        if self._thread.ident is None:
            self._thread.start()
        process: Future[subprocess.Popen[bytes]] = Future()
        self._requests.put((process, make))
        return process.result()

    def _keep(self) -> None:
        while True:
            process, make = self._requests.get()
            try:
                process.set_result(make())
            except OSError as error:
                process.set_exception(error)


class _Server:
    """A server and the socket for requests to it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tasks.children.warm.server", str(theirs.fileno()), " " * TITLE]
        with theirs:
            self._process = _KEEPER.start(
                lambda: subprocess.Popen(
                    tied_to(os.getpid(), command),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=[theirs.fileno()],
                )
            )

    def fork(self, words: Sequence[str], environment: Mapping[str, str], errors: int) -> Forked:
        """A child that runs `python -m` with these words. Raises ServerLost and CannotFork."""
        try:
            folder = os.getcwd()
        except FileNotFoundError as error:  # it was deleted, in which a new Python starts all the same
            raise CannotFork from error
        request = json.dumps({"words": words, "folder": folder, "environment": environment}).encode()
        if len(request) > REQUEST:
            raise CannotFork
        reports, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = os.pipe()
        try:
            socket.send_fds(self._requests, [request], [theirs.fileno(), writing, errors])
        except OSError as error:  # it was killed, or closed to make room
            reports.close()
            os.close(reading)
            raise ServerLost from error
        finally:
            theirs.close()
            os.close(writing)
        return Forked(reports, os.fdopen(reading, "rb", buffering=0))

    def close(self) -> subprocess.Popen[bytes]:
        """Let the server end once its children have. Returns its process."""
        self._requests.close()
        return self._process


_SERVERS: dict[tuple[tuple[str, str], ...], _Server] = {}  # by environment, the most recently used last
_LOCK = threading.Lock()
_KEEPER = _Keeper()


def may_fork(command: Sequence[str]) -> bool:
    """Whether a fork of a server can replace a command."""
    python = command[:2] == [sys.executable, "-m"]
    return python and command[2].startswith(tuple(LIBRARIES)) and missing_gpu() is not None


def fork(command: Sequence[str], environment: Mapping[str, str], errors: int) -> Forked:
    """A child that does what `command` would, in the working folder of this process. Its stderr is the descriptor
    `errors`, and its stdout is a pipe to read.

    Raises ServerLost if its server is killed meanwhile, and CannotFork.
    """
    own = {name: value for name, value in environment.items() if name.startswith(OWN) or name.endswith(SECRET)}
    shared = {name: value for name, value in environment.items() if name not in own}
    key = tuple(sorted(shared.items()))
    with _LOCK:
        server = _SERVERS.pop(key, None) or _Server(shared)
        _SERVERS[key] = server
        while len(_SERVERS) > MOST:
            _SERVERS.pop(next(iter(_SERVERS))).close()
    try:
        return server.fork(command[2:], own, errors)
    except ServerLost:
        with _LOCK:
            if _SERVERS.get(key) is server:
                del _SERVERS[key]
        raise


@atexit.register
def _end() -> None:
    """Wait for the servers, so that their processor time counts as this process's. They end with it in any case."""
    for process in [server.close() for server in _SERVERS.values()]:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)


def _forget() -> None:
    """In a fork of this process, close the sockets of its parent's servers: open ones would keep the servers alive."""
    global _LOCK, _KEEPER
    for server in _SERVERS.values():
        server.close()
    _SERVERS.clear()
    _LOCK, _KEEPER = threading.Lock(), _Keeper()


os.register_at_fork(after_in_child=_forget)
