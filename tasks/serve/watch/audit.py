"""The audit log: a JSON line for each request, in files that this machine keeps for a stated time.

A line has digests of the prompt and the answer, keyed by a salt of this server, so that a short text can't be guessed
without it. The texts themselves are kept only if asked for, in a folder of their own.

The event loop only appends to a list. A thread computes digests and writes, every FLUSH_SECONDS and at the end, so
`kill -9` loses at most the last second. A power failure may lose what the kernel hadn't written yet. Each process
writes to its own files. The next one that starts cuts off a line that a dead one left unfinished.

Lines that a full disk refuses wait in memory, up to MOST_WAITING bytes, until there is space. Further ones are lost and
counted.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import logging
import mmap
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from storage.errors import StoreError
from tasks.serve.watch.config import AuditConfig

FOLDER, TEXTS, SALT = "audit", "audit-text", "audit-salt"
SUFFIX, STAMP = ".jsonl", "%Y%m%dT%H%M%S"
FLUSH_SECONDS = 0.2
MOST_WAITING = 64_000_000
LINE = 600  # bytes that a line without texts takes in memory, about
BATCH = 1_000_000  # bytes of one write
log = logging.getLogger("gristmill.serve.audit")

Entry = tuple[dict[str, Any], str | None, str | None]  # a record, its prompt, its answer


class AuditLog:
    """The log of this process. Raises StoreError if its folders can't be made.

    `lost` is called with the number of lines that could not be kept, `failing` with each change of whether writing
    fails, both from any thread.
    """

    def __init__(
        self,
        config: AuditConfig,
        folder: Path,
        *,
        lost: Callable[[int], None] = lambda count: None,
        failing: Callable[[bool], None] = lambda now: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            self._salt = _salt(folder / SALT)
            self._lines = _Files(folder / FOLDER, config)
            self._texts = _Files(folder / TEXTS, config) if config.text else None
        except OSError as error:
            raise StoreError(
                f"The audit log in {folder} can't be opened: {error.strerror}.",
                "Give this user a folder with space that it can write, or set audit.enabled to false.",
            ) from error
        self._lost, self._say_failing, self._clock = lost, failing, clock
        self._inbox, self._given, self._done, self._unwritten = deque[Entry](), 0, 0, 0
        self._required, self.failing = config.required, False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def put(self, record: dict[str, Any], prompt: str | None, answer: str | None) -> None:
        """Log a request. Returns at once. Needs the record's `id` and `time`."""
        size = _size(prompt, answer)
        if self._given - self._done + size > MOST_WAITING:
            self._lost(1)
            return
        self._given += size  # only this thread adds, and only the other adds to what is done
        self._inbox.append((record, prompt, answer))

    @property
    def refusing(self) -> bool:
        """Whether new requests must be refused, as their lines might be lost."""
        behind = self._given - self._done > MOST_WAITING // 2
        return self._required and (self.failing or behind or not self._thread.is_alive())

    def client(self, address: str) -> str:
        """A keyed hash of a client's address."""
        return hmac.digest(self._salt, b"client\0" + address.encode(), "sha256").hex()[:16]

    def digest(self, text: str | None) -> str | None:
        """The keyed SHA-256 of a text."""
        data = None if text is None else text.encode("utf-8", "surrogatepass")
        return None if data is None else hmac.digest(self._salt, data, "sha256").hex()

    def close(self) -> None:
        """Write what waits, and end."""
        self._end.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._end.wait(FLUSH_SECONDS):
            self._flush()
        self._flush()
        if waiting := len(self._lines.pending):
            log.error("%d lines of the audit log are lost.", waiting)
            self._lost(waiting)
        for files in self._all():
            files.close()

    def _all(self) -> list[_Files]:
        return [self._texts, self._lines] if self._texts else [self._lines]

    def _flush(self) -> None:
        while self._inbox:
            record, prompt, answer = self._inbox.popleft()
            self._unwritten += _size(prompt, answer)
            digests = {"prompt_hmac": self.digest(prompt), "answer_hmac": self.digest(answer)}
            self._lines.pending.append(_line({**record, **digests}))
            if self._texts:
                texts = {"time": record["time"], "id": record["id"], "prompt": prompt, "answer": answer}
                self._texts.pending.append(_line(texts))
        try:
            for files in self._all():
                files.write(self._clock())
        except OSError as error:
            if not self.failing:
                log.error("The audit log can't be written: %s. Its lines wait in memory.", error.strerror)
            self._set_failing(True)
            return
        self._done, self._unwritten = self._done + self._unwritten, 0
        if self.failing:
            log.warning("The audit log is written again.")
            self._set_failing(False)

    def _set_failing(self, now: bool) -> None:
        self.failing = now
        self._say_failing(now)


class _Files:
    """The files of one folder, named by the time at which they begin. Begins one for each day and size."""

    def __init__(self, folder: Path, config: AuditConfig) -> None:
        self.pending = list[bytes]()
        self._folder, self._config = folder, config
        self._file, self._size, self._day = -1, 0, ""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for path in folder.glob(f"*{SUFFIX}"):
            with _of_the_dead(path) as file:
                _cut_unfinished(file)

    def write(self, now: float) -> None:
        """Write what is pending. Raises OSError, and keeps what is not written."""
        if f"{datetime.fromtimestamp(now, UTC):%Y%m%d}" != self._day:
            self._rotate(now)
        while self.pending:
            if self._file < 0 or self._size >= self._config.file_mb * 1_000_000:
                self._begin(now)
            count = size = 0
            while count < len(self.pending) and size < min(BATCH, self._config.file_mb * 1_000_000 - self._size):
                size += len(self.pending[count])
                count += 1
            self._append(b"".join(self.pending[:count]))
            del self.pending[:count]

    def close(self) -> None:
        """Close the current file, once its lines are on the disk."""
        file, self._file = self._file, -1
        if file >= 0:
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            os.ftruncate(self._file, self._size)  # whole lines only
            raise
        self._size += len(data)

    def _rotate(self, now: float) -> None:
        """At a new day: close the file, and delete those beyond the limits of age and number."""
        self.close()
        self._day = f"{datetime.fromtimestamp(now, UTC):%Y%m%d}"
        oldest = f"{datetime.fromtimestamp(now - self._config.days * 86_400, UTC):%Y%m%d}"
        paths = sorted(self._folder.glob(f"*{SUFFIX}"))
        beyond = set(paths[: 1 - self._config.files])
        for path in paths:
            if path in beyond or path.name < oldest:
                with _of_the_dead(path) as file:
                    if file >= 0:
                        path.unlink(missing_ok=True)

    def _begin(self, now: float) -> None:
        self._rotate(now)
        stamp = datetime.fromtimestamp(now, UTC).strftime(STAMP)
        number = max((int(path.stem[-4:]) for path in self._folder.glob(f"{stamp}-*{SUFFIX}")), default=999)
        while self._file < 0:
            number += 1
            path = self._folder / f"{stamp}-{number}{SUFFIX}"
            with suppress(FileExistsError):  # another process begins one in this second
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._size = 0


@contextmanager
def _of_the_dead(path: Path) -> Iterator[int]:
    """A descriptor of a file that no process writes, else -1."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield -1
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        yield -1
        return
    try:
        yield file
    finally:
        os.close(file)


def _cut_unfinished(file: int) -> None:
    """Cut off a line without its end."""
    size = os.fstat(file).st_size if file >= 0 else 0
    if size and os.pread(file, 1, size - 1) != b"\n":
        with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as content:
            end = content.rfind(b"\n") + 1
        os.ftruncate(file, end)


def _salt(path: Path) -> bytes:
    """The salt in a file, made by the first process that needs one."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(f"{SALT}.{secrets.token_hex(8)}")
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, secrets.token_bytes(32))
            os.fsync(file)
            if not path.exists():
                os.link(new, path)
        except FileExistsError:
            pass  # another process was first
        finally:
            os.close(file)
            new.unlink()
    path.chmod(0o600)
    salt = path.read_bytes()
    if len(salt) != 32:
        raise StoreError(
            f"{path} is not the salt of an audit log.",
            "Restore it, or remove it: digests then differ from earlier ones.",
        )
    return salt


def _line(record: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:  # half of a surrogate pair, which UTF-8 can't hold
        return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _size(prompt: str | None, answer: str | None) -> int:
    return LINE + len(prompt or "") + len(answer or "")
