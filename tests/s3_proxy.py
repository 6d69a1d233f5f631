"""A proxy before a local S3 server, which answers wrongly, late, in part, or not at all, and counts what is asked.

One request, all from one on, or a share of all meet a fault:

    500, 503, 403                   an answer with that status
    reset, lost, late               no answer: before the request is read, after it is done, in time
    cut upload, cut download        the connection ends in the middle
    torn upload                     half of a file is stored, and the client told that all is well
    flip                            a byte of an answer is another
    stale                           a listing lacks what was written last
    no conditions, unknown          conditions of writes are ignored, or answered with 501
    kill                            what asks is killed
"""

from __future__ import annotations

import http.client
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

PATIENCE = 2  # seconds that a client of these tests waits for an answer
PATIENT = {"FSSPEC_S3": f'{{"config_kwargs": {{"read_timeout": {PATIENCE}, "connect_timeout": {PATIENCE}}}}}'}
STALE_SECONDS = 5.0  # for which a stale listing lacks what was written
UNKNOWN = b"<Error><Code>NotImplemented</Code></Error>"
CONDITIONS = {"if-match", "if-none-match"}


class Proxy(ThreadingHTTPServer):
    """Passes requests on, all but the one that is due."""

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Relay)
        self.upstream = urlsplit(upstream).netloc
        self._lock = threading.Lock()
        self._fault, self._at, self._lasts, self._count = "", 0, False, 0
        self._struck, self._rain = 0, random.Random()
        self._share, self._faults = 0.0, [""]
        self.written: dict[str, float] = {}  # when, by bucket/key
        self.asked: Counter[str] = Counter()  # requests by method
        self.fetched: Counter[str] = Counter()  # objects whose bytes arrived whole, by bucket/key
        self.sent, self.received = 0, 0  # bytes of bodies, as the client sees it
        self.denied: set[str] = set()  # methods that are always answered with 403
        self.away = ""  # what has this in its address is answered with 503
        self.kill: Callable[[], None] = lambda: None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    def arm(self, fault: str, at: int, lasts: bool, kill: Callable[[], None] = lambda: None) -> None:
        """The fault comes at request number `at`, from 1; if it `lasts`, at all that follow too."""
        with self._lock:
            self._fault, self._at, self._lasts, self._count, self._struck = fault, at, lasts, 0, 0
            self.kill = kill

    def rain(self, faults: Sequence[str], share: float, seed: int) -> None:
        """Each request meets one of these faults with this probability."""
        with self._lock:
            self._faults, self._share, self._rain, self._struck = [*faults], share, random.Random(seed), 0

    def disarm(self) -> int:
        """How many faults happened; there will be none."""
        with self._lock:
            self._fault, self._share = "", 0.0
            return self._struck

    def due(self, method: str) -> str:
        """The fault of the next request, or nothing."""
        with self._lock:
            self._count += 1
            self.asked[method] += 1
            now = self._fault and (self._count == self._at or (self._lasts and self._count > self._at))
            fault = self._fault if now else "403" if method in self.denied else ""
            if not fault and self._rain.random() < self._share:
                fault = self._rain.choice(self._faults)
            self._struck += bool(fault)
            return fault

    def note_fetched(self, place: str) -> None:
        """An object's bytes arrived whole."""
        with self._lock:
            self.fetched[place] += 1

    def note_bytes(self, *, sent: int = 0, received: int = 0) -> None:
        """A client has sent or received so many bytes of bodies."""
        with self._lock:
            self.sent += sent
            self.received += received

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone is no news."""


class _Relay(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _pass_on(self) -> None:
        fault = self.server.due(self.command)
        if self.server.away and self.server.away in unquote(self.path):
            fault = "503"
        length = int(self.headers.get("Content-Length") or 0)
        if fault == "reset" or (fault == "cut upload" and length):
            self.rfile.read(length // 2 if fault == "cut upload" else 0)
            self.close_connection = True
            return
        body = self.rfile.read(length)
        self.server.note_bytes(sent=length)
        if fault == "kill":
            self.server.kill()
        if fault.isdigit():
            self._answer(int(fault), {}, b"", 0)
            return
        headers = dict(self.headers.items())
        if fault == "unknown" and CONDITIONS & {name.lower() for name in headers}:
            self._answer(501, {}, UNKNOWN, len(UNKNOWN))
            return
        if fault == "no conditions":
            headers = {name: value for name, value in headers.items() if name.lower() not in CONDITIONS}
        if fault == "torn upload" and self.command == "PUT":
            body = body[: length // 2]
            headers["Content-Length"] = str(len(body))
        upstream = http.client.HTTPConnection(self.server.upstream)
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        data = answer.read()
        upstream.close()
        place = unquote(self.path.partition("?")[0]).strip("/")
        if self.command == "PUT":
            self.server.written.setdefault(place, time.monotonic())
        if fault == "stale" and b"<ListBucketResult" in data:
            data = self._without_the_newest(data, place)
        if fault == "late":
            time.sleep(2 * PATIENCE)
        if fault in ("late", "lost"):
            self.close_connection = True
            return
        if fault == "flip" and data:
            data = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        told = int(answer.headers.get("Content-Length") or 0) if self.command == "HEAD" else len(data)
        whole = len(data) // 2 if fault == "cut download" else len(data)
        if self.command == "GET" and answer.status == HTTPStatus.OK and not fault and "/" in place:
            self.server.note_fetched(place)
        self._answer(answer.status, dict(answer.headers.items()), data[:whole], told)

    def _without_the_newest(self, listing: bytes, bucket: str) -> bytes:
        """A listing as it was some seconds ago."""
        now = time.monotonic()
        old = [path for path, when in self.server.written.items() if now - when > STALE_SECONDS]
        new = [path for path, when in self.server.written.items() if now - when <= STALE_SECONDS]

        def kept(entry: re.Match[bytes]) -> bytes:
            place = f"{bucket}/{unquote(entry[2].decode())}"
            fresh = place in new or (place.endswith("/") and not any(path.startswith(place) for path in old))
            return b"" if fresh else entry[0]

        entries = rb"<(Contents|CommonPrefixes)>\s*<(?:Key|Prefix)>(.*?)</.*?</\1>"
        return re.sub(entries, kept, listing, flags=re.DOTALL)

    def _answer(self, status: int, headers: Mapping[str, str], data: bytes, length: int) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.server.note_bytes(received=len(data))
            self.wfile.write(data)
            self.close_connection |= len(data) != length

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

    def log_message(self, format: str, *args: object) -> None:
        pass
