"""The stage's side of warm children: a server for each environment, started when it is first needed, and its children.

Warm are children on a CPU, as `python -m MODULE`. Where this machine may have a GPU a child is a new Python: a device
that was touched before a fork is lost to the child, and libraries touch it when they are imported. The ranks of a
launcher are new too.
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

MOST = 4  # servers that are kept, one for each environment; a run has one or two
END_SECONDS = 2.0  # for a server to end when this process does
# Prefixes and a suffix of variables that no library reads on import: they are passed to each child, never to its server
OWN, SECRET = ("GRISTMILL_", "PREFECT_", "PYTEST_CURRENT_"), "_API_KEY"


class CannotFork(Exception):
    """There is no server for this child, which is to be a new Python."""


class ServerLost(Exception):
    """The server was killed, and the child with it."""


class Forked:
    """A child, with as much of subprocess.Popen as its stage needs."""

    def __init__(self, told: socket.socket, stdout: IO[bytes]) -> None:
        self._told, self.stdout = told, stdout
        self.returncode: int | None = None
        self.lost = False  # with its server
        with contextlib.ExitStack() as undone:
            for end in (told, stdout):
                undone.callback(end.close)  # by which the server knows that nobody waits for it
            self.pid = int(self._hear()["pid"])
            undone.pop_all()

    def _hear(self) -> dict[str, float]:
        try:
            message = self._told.recv(1 << 10)
        except ConnectionResetError:
            message = b""
        if not message:
            raise ServerLost
        fields: dict[str, float] = json.loads(message)
        return fields

    def poll(self) -> int | None:
        """Its exit code, or the negative number of the signal that ended it; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """The same when it has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._told, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0)
            try:
                told = self._hear()
                self.returncode = int(told["code"])
                machine.add_worker(told["cpu_seconds"], int(told["peak"]))  # the system counts it as its server's
            except ServerLost:
                self.returncode, self.lost = -9, True
            self._told.close()
        return self.returncode


class _Keeper:
    """The thread that starts servers. The kernel ends a process with the *thread* that started it, so that is one which
    lives as long as this process: longer than a pool's, which ends before threads that may still run a stage."""

    def __init__(self) -> None:
        self._asked = queue.SimpleQueue[tuple[Future[subprocess.Popen[bytes]], Callable[[], subprocess.Popen[bytes]]]]()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def start(self, make: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """What `make` starts, in that thread. One caller at a time (_LOCK)."""
        if self._thread.ident is None:
            self._thread.start()
        made: Future[subprocess.Popen[bytes]] = Future()
        self._asked.put((made, make))
        return made.result()

    def _keep(self) -> None:
        while True:
            made, make = self._asked.get()
            try:
                made.set_result(make())
            except OSError as error:
                made.set_exception(error)


class _Server:
    """A server and the socket that it is asked by."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._asked, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
        """A child that runs `python -m` with these words. Raises ServerLost, and CannotFork."""
        try:
            folder = os.getcwd()
        except FileNotFoundError as error:  # where a new Python starts all the same
            raise CannotFork from error
        request = json.dumps({"words": words, "folder": folder, "environment": environment}).encode()
        if len(request) > REQUEST:
            raise CannotFork
        told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = os.pipe()
        try:
            socket.send_fds(self._asked, [request], [theirs.fileno(), writing, errors])
        except OSError as error:  # it was killed, or closed to make room
            told.close()
            os.close(reading)
            raise ServerLost from error
        finally:
            theirs.close()
            os.close(writing)
        return Forked(told, os.fdopen(reading, "rb", buffering=0))

    def close(self) -> subprocess.Popen[bytes]:
        """It ends when its children have."""
        self._asked.close()
        return self._process


_SERVERS: dict[tuple[tuple[str, str], ...], _Server] = {}  # by environment, the one used last at the end
_LOCK = threading.Lock()
_KEEPER = _Keeper()


def may_fork(command: Sequence[str]) -> bool:
    """Whether a command can be a fork of a server instead."""
    python = command[:2] == [sys.executable, "-m"]
    return python and command[2].startswith(tuple(LIBRARIES)) and missing_gpu() is not None


def fork(command: Sequence[str], environment: Mapping[str, str], errors: int) -> Forked:
    """A child that is started as `command` would be, in the folder of this process. It writes to the descriptor
    `errors`, and its output is to be read.

    Raises ServerLost where its server is killed meanwhile, and CannotFork.
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
    """The servers end with this process in any case. Waited for, their processor time counts as its own."""
    for process in [server.close() for server in _SERVERS.values()]:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)


def _forget() -> None:
    """In a fork of this process: the servers are its parent's, which would seem to live as long as the sockets do."""
    global _LOCK, _KEEPER
    for server in _SERVERS.values():
        server.close()
    _SERVERS.clear()
    _LOCK, _KEEPER = threading.Lock(), _Keeper()


os.register_at_fork(after_in_child=_forget)
