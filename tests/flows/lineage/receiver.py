"""A catalogue on this machine that keeps what it is sent, and may misbehave; and the rules that events must keep."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ENDS = {"COMPLETE", "FAIL", "ABORT"}
STATUS = {"500": 500, "401": 401, "302": 302, "503": 503}


class Receiver(ThreadingHTTPServer):
    """Answers as its `mode` says: a status, `garbage`, `slow`, `page`, or well."""

    daemon_threads = True

    def __init__(self, mode: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mode = mode
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []  # method, path, headers, event

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/catalogue"

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for *_, event in self.requests]


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_GET(self) -> None:
        self.server.requests.append(("GET", self.path, dict(self.headers), None))
        self._answer(200)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append(("POST", self.path, dict(self.headers), json.loads(body)))
        mode = self.server.mode
        if mode == "slow":
            time.sleep(3)
        if mode == "garbage":
            self.wfile.write(b"\x00\x01 no HTTP\r\n\r\n")
        else:
            self._answer(STATUS.get(mode, 200 if mode == "page" else 201))

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Location", "/elsewhere")
        self.send_header("Retry-After", "3600")
        if self.server.mode == "page":
            self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


@contextmanager
def receiving(mode: str = "well") -> Iterator[Receiver]:
    """A receiver in a thread."""
    receiver = Receiver(mode)
    thread = threading.Thread(target=receiver.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.shutdown()
        receiver.server_close()


def check_life_cycle(events: Sequence[dict[str, Any]]) -> None:
    """OpenLineage's rules: START first, one end for each run, and a parent that has begun and not ended."""
    seen: dict[str, list[str]] = {}
    for event in events:
        run, kind = event["run"]["runId"], event["eventType"]
        kinds = seen.setdefault(run, [])
        assert (kind == "START") == (not kinds), (event["job"]["name"], kind, kinds)
        assert not ENDS & {*kinds}, f"{event['job']['name']} ended twice"
        if parent := event["run"]["facets"].get("parent"):
            above = seen[parent["run"]["runId"]]
            assert above[0] == "START"
            assert not ENDS & {*above}, f"{event['job']['name']} outlives its parent"
        kinds.append(kind)
    assert all(ENDS & {*kinds} for kinds in seen.values()), seen
