"""Requests byte by byte, as no library sends them, and a well-behaved client beside them."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.tasks.serve.real_server import Server

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
ERROR = re.compile(rb'\{"(?:type":"error","error":\{"type":"\w+","|error":\{")message":"(?:[^"\\]|\\.)*"')
REFUSALS = {400, 401, 403, 404, 405, 408, 413, 415, 421, 429, 503}
WORST_SECONDS = 1.5  # for the well-behaved client, on a machine with two busy cores


def connect(server: Server, seconds: float = 10.0) -> socket.socket:
    """A connection."""
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port), seconds)


def sent(server: Server, *parts: bytes, seconds: float = 10.0, pause: float = 0.0) -> bytes:
    """What the server sends until it closes the connection, or is silent for so long."""
    received = bytearray()
    with connect(server, seconds) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
            while data := connection.recv(1 << 16):
                received += data
        except OSError:
            pass  # closed or silent: what came is the answer
    return bytes(received)


def host(server: Server) -> str:
    """The header that names the server."""
    return f"Host: {urlsplit(server.url).netloc}\r\n"


def head(server: Server, line: str, *headers: str) -> bytes:
    """The head of a request after which the connection is closed."""
    fields = "".join(f"{header}\r\n" for header in headers)
    return f"{line} HTTP/1.1\r\n{host(server)}Connection: close\r\n{fields}\r\n".encode("latin-1")


def posted(server: Server, path: str, body: Any, *headers: str, seconds: float = 30.0) -> bytes:
    """The answer to a body, as it is or as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind, length = "Content-Type: application/json", f"Content-Length: {len(data)}"
    return sent(server, head(server, f"POST {path}", kind, length, *headers), data, seconds=seconds)


def statuses(answer: bytes) -> list[int]:
    """The status of each response, without those that only say to go on."""
    return [status for status in map(int, STATUS.findall(answer)) if status != 100]


def refused(answer: bytes) -> str:
    """The sentence of a refusal."""
    (status,) = statuses(answer)
    assert status in REFUSALS, answer
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    sentence: str = body["error"]["message"]
    assert sentence.endswith((".", "…")), sentence
    assert "\n" not in sentence
    assert len(sentence) < 600, sentence
    if status in (429, 503):
        assert b"\r\nretry-after: " in answer.lower(), answer
    return sentence


def answered_or_refused(answer: bytes) -> None:
    """A whole answer, or a refusal in one sentence."""
    found = statuses(answer)
    assert found, answer
    if found != [200]:
        refused(answer)


@contextmanager
def bystander(server: Server, key: str, question: str) -> Iterator[None]:
    """A client of its own who asks all the while. Each of its answers must come, and in time."""
    command = [sys.executable, "-m", "tests.tasks.serve.hostile.bystander", server.url, key, question]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asks\n"
        yield
        time.sleep(0.3)
        found = json.loads(process.communicate()[0])
    assert found["wrong"] == []
    assert len(found["seconds"]) > 3
    assert max(found["seconds"]) < WORST_SECONDS, sorted(found["seconds"])[-5:]


def memory(pid: int) -> int:
    """Resident bytes of a process."""
    fields = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in fields if line.startswith("VmRSS"))


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_unharmed(server: Server, engines: Sequence[int], secrets: Sequence[str]) -> None:
    """The server and its engine still run, and no log has a traceback or what is a client's own."""
    assert server.process.poll() is None
    assert set(engines) <= set(server.engines()), "an engine has ended"
    files = [path for path in server.state.rglob("*") if path.is_file() and "sqlite" not in path.name]
    logs = "\n".join([*server.lines, *(path.read_text(errors="replace") for path in files)])
    for sign in ("Traceback", " at=", "Exception in ASGI", *secrets):
        assert sign not in logs, next(line for line in logs.split("\n") if sign in line)
