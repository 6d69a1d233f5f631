"""Faults between a run and its bucket, at one request or from it on."""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import s3fs

from storage.store import Store
from tests.faults.kinds import KILLED, Kind, Met
from tests.faults.runner import TYPED
from tests.faults.scene import Scene, Undisturbed
from tests.s3_proxy import PATIENT, Proxy
from tests.s3_server import client_of

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
        return Met(code, scene.proxy.disarm() > 0)


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
