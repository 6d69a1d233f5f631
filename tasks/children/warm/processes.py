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
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO

from tasks.children.devices import missing_gpu
from tasks.children.parent import tied_to
from tasks.children.warm.server import LIBRARIES, TITLE

MOST = 4  # servers that are kept, one for each environment; a run has one or two
END_SECONDS = 2.0  # for a server to end when this process does
OWN = ("GRISTMILL_", "PREFECT_", "PYTEST_CURRENT_")  # variables that no library reads when it is imported


class ServerLost(Exception):
    """The server was killed, and the child with it."""


class Forked:
    """A child, with as much of subprocess.Popen as its stage needs."""

    def __init__(self, told: socket.socket, stdout: IO[bytes]) -> None:
        self._told, self.stdout = told, stdout
        self.returncode: int | None = None
        self.lost = False  # with its server
        self.pid = self._hear()["pid"]

    def _hear(self) -> dict[str, int]:
        try:
            message = self._told.recv(1 << 10)
        except ConnectionResetError:
            message = b""
        if not message:
            raise ServerLost
        fields: dict[str, int] = json.loads(message)
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
                self.returncode = self._hear()["code"]
            except ServerLost:
                self.returncode, self.lost = -9, True
            self._told.close()
        return self.returncode


class _Server:
    """A server and the socket that it is asked by."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._asked, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tasks.children.warm.server", str(theirs.fileno()), " " * TITLE]
        with theirs:
            self._process = _KEEPER.submit(
                subprocess.Popen,
                tied_to(os.getpid(), command),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            ).result()

    def fork(self, words: Sequence[str], environment: Mapping[str, str], errors: int) -> Forked:
        """A child that runs `python -m` with these words. Raises ServerLost."""
        told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = os.pipe()
        request = {"words": words, "folder": os.getcwd(), "environment": environment}
        try:
            socket.send_fds(self._asked, [json.dumps(request).encode()], [theirs.fileno(), writing, errors])
        except OSError as error:  # it was killed, or closed to make room
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
# The kernel ends a server with the *thread* that started it, so that is one which lives as long as this process
_KEEPER = ThreadPoolExecutor(1)


def may_fork(command: Sequence[str]) -> bool:
    """Whether a command can be a fork of a server instead."""
    python = command[:2] == [sys.executable, "-m"]
    return python and command[2].startswith(tuple(LIBRARIES)) and missing_gpu() is not None


def fork(command: Sequence[str], environment: Mapping[str, str], errors: int) -> Forked:
    """A child that is started as `command` would be, in the folder of this process. It writes to the descriptor
    `errors`, and its output is to be read.

    Raises ServerLost where its server is killed meanwhile.
    """
    own = {name: value for name, value in environment.items() if name.startswith(OWN)}
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
    _LOCK, _KEEPER = threading.Lock(), ThreadPoolExecutor(1)


os.register_at_fork(after_in_child=_forget)
