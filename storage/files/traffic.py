"""The traffic between this process and a bucket, for a run's report: requests cost money, bytes cost money and time."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Traffic:
    """Bytes of files, and requests, including repetitions. Requests are counted only for S3."""

    requests: int = 0
    sent: int = 0
    received: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    def add(self, *, requests: int = 0, sent: int = 0, received: int = 0) -> None:
        """Count requests and bytes. Safe for threads."""
        with self._lock:
            self.requests += requests
            self.sent += sent
            self.received += received

    def taken(self) -> Traffic:
        """The counts since the last call."""
        with self._lock:
            counts = Traffic(self.requests, self.sent, self.received)
            self.requests = self.sent = self.received = 0
        return counts

    def count_requests_of(self, fs: Any) -> None:
        """Count the requests of a file system whose client has connected, if it is S3's: each attempt of the client."""
        client = getattr(fs, "s3", None)
        if client is not None:
            client.meta.events.register("before-send.s3", self._on_request)

    def _on_request(self, **_: Any) -> None:
        self.add(requests=1)

    def __bool__(self) -> bool:
        return bool(self.requests or self.sent or self.received)
