"""Faults between a run and its bucket: a proxy before a local S3 server answers wrongly, late, in part, not at all."""

from __future__ import annotations

import http.client
import math
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import s3fs

from storage.store import Store
from tests.faults.kinds import KILLED, Kind, Met
from tests.faults.runner import TYPED
from tests.faults.scene import Scene, Undisturbed
from tests.s3_server import client_of

PATIENCE = 2  # seconds that a client of these tests waits for an answer
PATIENT = {"FSSPEC_S3": f'{{"config_kwargs": {{"read_timeout": {PATIENCE}, "connect_timeout": {PATIENCE}}}}}'}
MOST_REQUESTS = 200  # the numbers that are drawn; a run of few requests is over before a late one


@dataclass(frozen=True)
class AtRequest(Kind):
    """A fault at one request to the bucket, or from it on."""

    name: str
    fault: str
    codes: frozenset[int]
    lasts: bool = False

    def meet(self, scene: Scene, base: Undisturbed, stage: str, chance: random.Random) -> Met:
        """Early requests are drawn more often, since every run makes some."""
        assert isinstance(scene, BucketScene)
        at = int(math.exp(chance.uniform(0, math.log(MOST_REQUESTS))))
        scene.proxy.arm(self.fault, at, self.lasts, lambda: os.kill(scene.process, signal.SIGKILL))
        scene.begin(stage)
        code = scene.end()
        return Met(code, scene.proxy.disarm())


def _at(name: str, fault: str, *codes: int, lasts: bool = False) -> AtRequest:
    return AtRequest(name, fault, frozenset(codes), lasts)


IN_BUCKET: list[Kind] = [
    _at("bucket: one error 500", "500", 0),
    _at("bucket: one error 503 SlowDown", "503", 0),
    _at("bucket: errors 500 from a request on", "500", TYPED, 0, lasts=True),
    _at("bucket: denied from a request on", "403", TYPED, 0, lasts=True),
    _at("bucket: one answer late", "late", 0),
    _at("bucket: one answer lost", "lost", 0),
    _at("bucket: gone from a request on", "reset", TYPED, 0, lasts=True),
    _at("bucket: an upload cut off", "cut upload", 0),
    _at("bucket: a download cut off", "cut download", 0, TYPED),
    _at("bucket: a byte of an answer flipped", "flip", 0, TYPED),
    _at("bucket: kill -9 at a request", "kill", KILLED),
]


class Proxy(ThreadingHTTPServer):
    """Passes requests on, all but the one that is due."""

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Relay)
        self.upstream = urlsplit(upstream).netloc
        self._lock = threading.Lock()
        self._fault, self._at, self._lasts, self._count = "", 0, False, 0
        self._struck = False
        self.kill: Callable[[], None] = lambda: None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    def arm(self, fault: str, at: int, lasts: bool, kill: Callable[[], None]) -> None:
        """The fault comes at request number `at`, from 1; if it `lasts`, at all that follow too."""
        with self._lock:
            self._fault, self._at, self._lasts, self._count, self._struck = fault, at, lasts, 0, False
            self.kill = kill

    def disarm(self) -> bool:
        """Whether the fault happened; there will be none."""
        with self._lock:
            self._fault = ""
            return self._struck

    def due(self) -> str:
        """The fault of the next request, or nothing."""
        with self._lock:
            self._count += 1
            now = self._fault and (self._count == self._at or (self._lasts and self._count > self._at))
            self._struck |= bool(now)
            return self._fault if now else ""

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone is no news."""


class _Relay(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _pass_on(self) -> None:
        fault = self.server.due()
        length = int(self.headers.get("Content-Length") or 0)
        if fault == "reset" or (fault == "cut upload" and length):
            self.rfile.read(length // 2 if fault == "cut upload" else 0)
            self.close_connection = True
            return
        body = self.rfile.read(length)
        if fault == "kill":
            self.server.kill()
        if fault.isdigit():
            self._answer(int(fault), {}, b"", 0)
            return
        upstream = http.client.HTTPConnection(self.server.upstream)
        upstream.request(self.command, self.path, body, dict(self.headers.items()))
        answer = upstream.getresponse()
        data = answer.read()
        upstream.close()
        if fault == "late":
            time.sleep(2 * PATIENCE)
        if fault in ("late", "lost"):
            self.close_connection = True
            return
        if fault == "flip" and data:
            data = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        told = int(answer.headers.get("Content-Length") or 0) if self.command == "HEAD" else len(data)
        whole = len(data) // 2 if fault == "cut download" else len(data)
        self._answer(answer.status, dict(answer.headers.items()), data[:whole], told)

    def _answer(self, status: int, headers: Mapping[str, str], data: bytes, length: int) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
            self.close_connection |= len(data) != length

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def used_here(address: str) -> Iterator[None]:
    """Let this process use the S3 server at an address within the block."""
    before = dict(os.environ)
    os.environ |= client_of(address) | PATIENT
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        yield
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ |= before


class BucketScene(Scene):
    """A store in a bucket of its own, which runs reach through a proxy."""

    def __init__(self, folder: Path, upstream: str) -> None:
        self.proxy = Proxy(upstream)
        super().__init__(folder, client_of(self.proxy.url) | PATIENT)
        self.bucket = f"storm-{self.proxy.server_port}"
        self.fs = s3fs.S3FileSystem(skip_instance_cache=True)
        self.fs.mkdir(self.bucket)
        self.process = 0

    @property
    def url(self) -> str:
        """A folder of the bucket."""
        return f"s3://{self.bucket}/store"

    def open(self) -> Store:
        """The store, reached without the proxy; its local side is that of the runs."""
        found = list((self.local.parent / "cache" / "gristmill").glob(12 * "?"))
        return Store(self.url, found[0] if found else self.local.parent / "nothing")

    def lay_out(self, base: Undisturbed, stage: str) -> None:
        """As in a folder, but uploaded, with no local copies."""
        super().lay_out(base, stage)
        shutil.rmtree(self.local.parent / "cache", ignore_errors=True)
        if self.fs.exists(f"{self.bucket}/store"):
            self.fs.rm(f"{self.bucket}/store", recursive=True)
        self.fs.put(str(self.local), f"{self.bucket}/store", recursive=True)

    def begin(self, stage: str) -> int:
        """Start a run."""
        self.process = super().begin(stage)
        return self.process

    def close(self) -> None:
        """End the runner and the proxy."""
        super().close()
        self.proxy.shutdown()
