"""Settings and messages of the sandbox's processes: a length of four bytes, then JSON."""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from typing import Any

LENGTH = struct.Struct("!I")


@dataclass(frozen=True)
class Settings:
    """The means of isolation in use, and the limits of each program in bytes and seconds. Without namespaces, `folder`
    holds the programs' folders."""

    namespaces: bool
    landlock: bool
    seccomp: bool
    seconds: float
    memory: int
    files: int
    open_files: int
    tasks: int
    packages: tuple[str, ...]
    folder: str


def send(channel: socket.socket, message: Any) -> None:
    """Send one message. Raises OSError when the other end is gone."""
    content = json.dumps(message).encode("ascii")
    channel.sendall(LENGTH.pack(len(content)) + content)


def receive(channel: socket.socket) -> Any:
    """Receive the next message, or None when the other end is gone."""
    head = _exactly(channel, LENGTH.size)
    content = _exactly(channel, LENGTH.unpack(head)[0]) if head else None
    return json.loads(content) if content else None


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    parts = []
    while size:
        try:
            part = channel.recv(min(size, 1 << 20))
        except ConnectionError:
            return None
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
