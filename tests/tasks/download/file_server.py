"""A server of files on this machine that can refuse, cut connections and send whole files only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

ERROR_PAGE = b"<html><body>Please slow down</body></html>"


@dataclass
class Behaviour:
    """What the server does. `refusals` are the statuses of the next answers. `cut` is the most bytes of an answer,
    whose connection then dies, and `short` those of a part, which then ends."""

    files: dict[str, bytes] = field(default_factory=dict)
    parts: bool = True
    refusals: list[int] = field(default_factory=list)
    cut: int | None = None
    short: int | None = None
    versioned: bool = True
    version: str = '"1"'
    wait: str | None = None


@contextmanager
def serve_files(behaviour: Behaviour) -> Iterator[str]:
    """The server's URL, within the block."""
    lock = Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with lock:
                refusal = behaviour.refusals.pop(0) if behaviour.refusals else 0
            try:
                self._answer(refusal)
            except ConnectionError:  # the client has gone
                self.close_connection = True

        def _answer(self, refusal: int) -> None:
            data = behaviour.files.get(self.path.lstrip("/"))
            if self.path.startswith("/circle"):
                return self._send(302, b"", Location=f"/circle{len(self.path)}")
            if self.path.startswith("/moved/"):
                return self._send(302, b"", Location=self.path.removeprefix("/moved"))
            if refusal:
                return self._send(refusal, ERROR_PAGE, **({"Retry-After": behaviour.wait} if behaviour.wait else {}))
            if data is None:
                return self._send(404, ERROR_PAGE)
            named = {"ETag": behaviour.version} if behaviour.versioned else {}
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if not asked or not behaviour.parts:
                return self._send(200, data, **named)
            start, end = int(asked[1]), min(int(asked[2]), len(data) - 1)
            if start >= len(data):
                return self._send(416, b"", **{"Content-Range": f"bytes */{len(data)}"}, **named)
            place = {"Content-Range": f"bytes {start}-{end}/{len(data)}"}
            self._send(206, data[start : end + 1][: behaviour.short], **place, **named)

        def _send(self, status: int, data: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if behaviour.cut is not None and len(data) > behaviour.cut:
                self.wfile.write(data[: behaviour.cut])
                self.close_connection = True
            else:
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
