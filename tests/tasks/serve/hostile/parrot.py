"""An OpenAI-compatible server that says what a test wants, in parts of any size: an engine by its URL."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

MODEL = "parrot"


@dataclass
class Parrot:
    """What is said next, and in parts of how many characters."""

    url: str = ""
    says: str = "Well."
    size: int = 3


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    parrot: ClassVar[Parrot]

    def do_GET(self) -> None:
        self._whole({"data": [{"id": MODEL, "owned_by": "a test"}]}, 200 if self.path == "/v1/models" else 404)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions":
            self._whole({"error": {"message": "no"}}, 404)
            return
        said, size = self.parrot.says, self.parrot.size
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at in range(0, len(said), size):
            part = said[at : at + size]
            choice: dict[str, Any] = {"text": part, "finish_reason": None}
            if asked.get("logprobs") is not None:
                tops = [{part: -0.1, said[: at + size]: -3.0}]  # as unlikely as it is that a token says so much
                choice["logprobs"] = {"tokens": [part], "token_logprobs": [-0.1], "top_logprobs": tops}
            self._event({"choices": [choice]})
        self._event({"choices": [{"text": "", "finish_reason": "stop"}]})
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, value: Any) -> None:
        data = f"data: {json.dumps(value)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _whole(self, value: Any, status: int) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        """Nothing: tests read what the server under test writes."""


@contextmanager
def parrot() -> Iterator[Parrot]:
    """A running one."""
    found = Parrot()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"parrot": found}))
    found.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
