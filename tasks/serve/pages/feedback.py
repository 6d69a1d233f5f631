"""Votes on answers, kept as rows that `download` reads: its converters check each row before it is written.

A thumb is a labelled row (`labelled.jsonl`, role `labelled`). A thumb down with a better answer is a preference
(`preferences.jsonl`, role `preferences`). So is a vote between two answers, sent as a thumb down on the worse one. Each
row also names its request, model, release and key, so that the votes of one key can be removed.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from storage.errors import BadDocument
from storage.files.flush import flush
from storage.shards.lines import as_line
from tasks.download.pairs import labelled, preference

LABELLED, PREFERENCES = "labelled.jsonl", "preferences.jsonl"
FIELDS = {"request_id", "model", "messages", "answer", "rating", "better"}
MOST_ROW_BYTES = 1_000_000
MOST_NAME = 200  # characters of a request's id, and of a model's name
MOST_TURNS = 1000
REMEMBERED = 10_000  # requests that have their vote, and keys that have voted in the last minute


class Feedback:
    """The votes of a server in a folder of mode 0700. Several threads and processes may add to the same folder."""

    def __init__(
        self,
        folder: Path,
        *,
        per_minute: int = 30,
        most_bytes: int = 1_000_000_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._per_minute, self._most_bytes, self._clock = folder, per_minute, most_bytes, clock
        self._lock = Lock()
        self._times: dict[str, deque[float]] = {}
        self._given: dict[tuple[str, str], None] = {}  # key and request, the oldest first
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)

    def add(self, payload: dict[str, Any], key: str, release_digest: str) -> None:
        """Write the vote in the body of a request, and flush it to the disk: call it in a thread. Raises ValueError
        with one sentence for a vote that is refused, and OSError if it can't be written."""
        name, row = _row(payload)
        about = key, str(payload["request_id"])
        made = {
            **row,
            "request_id": payload["request_id"],
            "model": payload["model"],
            "release": release_digest,
            "key": key,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        line = as_line(made).encode()
        if len(line) > MOST_ROW_BYTES:
            raise ValueError(f"The vote has {len(line):,} bytes, more than the {MOST_ROW_BYTES:,} that are kept.")
        with self._lock:
            self._admit(key)
            if about in self._given:
                raise ValueError("This answer has your vote already.")
            self._append(self._folder / name, line)
            self._given[about] = None
            if len(self._given) > REMEMBERED:
                del self._given[next(iter(self._given))]

    def _admit(self, key: str) -> None:
        """Count a vote of the key. Raises ValueError if it has voted too often in the last minute."""
        now = self._clock()
        if len(self._times) >= REMEMBERED:
            self._times = {each: times for each, times in self._times.items() if times[-1] > now - 60}
        times = self._times.setdefault(key, deque())
        while times and times[0] <= now - 60:
            times.popleft()
        if len(times) >= self._per_minute:
            wait = math.ceil(times[0] + 60 - now)
            raise ValueError(f"More than {self._per_minute} votes a minute are refused: try again in {wait} s.")
        times.append(now)

    def _append(self, path: Path, line: bytes) -> None:
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # for the few milliseconds of another process's line
            before = os.fstat(descriptor).st_size
            if before + len(line) > self._most_bytes:
                raise ValueError("The server keeps no more votes, as their file is full.")
            tail = os.pread(descriptor, MOST_ROW_BYTES, max(0, before - MOST_ROW_BYTES))
            before -= len(tail) - (tail.rfind(b"\n") + 1)
            os.ftruncate(descriptor, before)  # without the half line that a kill leaves
            try:
                while line:
                    line = line[os.write(descriptor, line) :]
                os.fsync(descriptor)
            except OSError:  # a full disk must not leave half a line
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)
        if is_new:
            flush(path.parent)


def _row(payload: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The file for a vote, and its row as `download` converts it. Raises ValueError."""
    if not isinstance(payload, dict) or payload.keys() - FIELDS or (FIELDS - {"better"}) - payload.keys():
        raise ValueError(f"A vote has the fields {', '.join(sorted(FIELDS))}, of which better may be left out.")
    for name in ("request_id", "model"):
        value = payload[name]
        if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= MOST_NAME:
            raise ValueError(f"{name} must be 1 to {MOST_NAME} printable characters.")
    messages, answer, rating, better = (payload.get(name) for name in ("messages", "answer", "rating", "better"))
    if not isinstance(messages, list) or not 0 < len(messages) <= MOST_TURNS:
        raise ValueError(f"messages must be a list of 1 to {MOST_TURNS:,} messages.")
    if isinstance(rating, bool) or rating not in (1, -1):
        raise ValueError("rating must be 1 or -1.")
    if better is not None and rating == 1:
        raise ValueError("A better answer belongs to a rating of -1.")
    if not isinstance(answer, str) or not isinstance(better, str | None):
        raise ValueError("answer and better must be texts, and better may be null.")
    said = [{"role": "assistant", "content": answer}]
    try:
        if better is None:
            converted = labelled({"prompt": messages, "completion": said, "label": rating == 1}, "feedback")
            return LABELLED, converted.pair
        preferred = [{"role": "assistant", "content": better}]
        return PREFERENCES, preference({"prompt": messages, "chosen": preferred, "rejected": said}, "feedback").pair
    except BadDocument as error:
        raise ValueError(f"No model could learn from this vote: {error.facts.get('why') or error.message}.") from error
