"""What goes between this process and a bucket, for a run to tell: requests cost money, bytes cost money and time."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Traffic:
    """Bytes of files, and requests, with all that was repeated; of a service that can't be counted there are none."""

    requests: int = 0
    sent: int = 0
    received: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    def add(self, *, requests: int = 0, sent: int = 0, received: int = 0) -> None:
        """Count what has happened; from any thread."""
        with self._lock:
            self.requests += requests
            self.sent += sent
            self.received += received

    def taken(self) -> Traffic:
        """What was counted since this was last called."""
        with self._lock:
            found = Traffic(self.requests, self.sent, self.received)
            self.requests = self.sent = self.received = 0
        return found

    def count_requests_of(self, fs: Any) -> None:
        """Count the requests of a file system, once its client has connected, if it is one of S3: each attempt, as the
        client makes it."""
        client = getattr(fs, "s3", None)
        if client is not None:
            client.meta.events.register("before-send.s3", self._on_request)

    def _on_request(self, **_: Any) -> None:
        self.add(requests=1)

    def __bool__(self) -> bool:
        return bool(self.requests or self.sent or self.received)
