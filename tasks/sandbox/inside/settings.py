"""What the processes of the sandbox are told, and how messages travel: a length of four bytes, then JSON."""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from typing import Any

LENGTH = struct.Struct("!I")


@dataclass(frozen=True)
class Settings:
    """Which means of isolation are used, and the limits of each program. `folder` is where programs get their folders
    where there are no namespaces. Bytes and seconds."""

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
    """The next message; None when the other end is gone."""
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
