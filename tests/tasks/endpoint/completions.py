"""A small OpenAI-compatible server on this machine, which answers as a test says and remembers its requests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True)
class Said:
    """An answer of the server, after a delay in seconds: a text, or else a status and bytes."""

    text: str = ""
    finish_reason: str = "stop"
    status: int = 200
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0


@dataclass
class Server:
    """The server as a test sees it."""

    url: str
    asked: list[Body] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0


@contextmanager
def serve(answer: Callable[[Body], Said]) -> Iterator[Server]:
    """A server that answers each request by a function, until the end of the block."""
    lock = Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                found.asked.append(body)
                found.headers.append({"path": self.path, **dict(self.headers.items())})
                found.at_once += 1
                found.most_at_once = max(found.most_at_once, found.at_once)
                said = answer(body)
            time.sleep(said.delay)
            with lock:
                found.at_once -= 1
            usage = {"prompt_tokens": 10, "completion_tokens": 5}
            choice = {"message": {"role": "assistant", "content": said.text}, "finish_reason": said.finish_reason}
            content = json.dumps({"choices": [choice], "usage": usage}).encode()
            content = content if said.content is None else said.content
            try:
                self.send_response(said.status)
                for name, value in {"Content-Length": str(len(content)), **said.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
            except (BrokenPipeError, ConnectionResetError):  # by a client that has stopped waiting
                self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Server(f"http://127.0.0.1:{server.server_port}/v1")
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
