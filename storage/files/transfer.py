"""Transfers files to a bucket and back, and checks them: a file that did not arrive intact is transferred again.

The client's own checks (CRC32 in S3) reach only to the end of its connection: a proxy, or a service that ignores them.
So the object's description is compared with the file: its size, and in S3 its ETag, which is the MD5 of the bytes, or
of the MD5s of the parts that a large file was sent in. If the service encrypts with its own keys (SSE-KMS), the ETag is
something else, and the object is read back.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from storage.digests import FileEntry, file_digest
from storage.errors import DamagedArtifact, StoreError
from storage.files.remote import Remote, pause
from storage.files.traffic import Traffic

ATTEMPTS = 4  # for each file
PART_BYTES = 50 << 20  # of a large file: files smaller than two parts are sent whole
MOST_PARTS = 10_000  # S3's limit
CHUNK = 1 << 20


class Transfers:
    """Transfers between this machine and a bucket."""

    def __init__(self, fs: Remote, url: str, *, parts: bool) -> None:
        self._fs, self._url, self._parts = fs, url, parts
        self.traffic = Traffic()

    def upload(
        self, folder: Path, files: Mapping[str, FileEntry], remote: str, check: Callable[[], None] = lambda: None
    ) -> None:
        """Send files of a folder, by their names below it, and check that they arrived. Calls `check` before each.

        Raises StoreError for a file that does not arrive intact in `ATTEMPTS` attempts.
        """
        waiting = dict(files)
        for attempt in range(ATTEMPTS):
            if attempt:
                pause(attempt)
            for name, entry in waiting.items():
                check()
                options = {"chunksize": part_bytes(entry.size)} if self._parts else {}
                self._fs.put_file(str(folder / name), f"{remote}/{name}", **options)
                self.traffic.add(sent=entry.size)
            self._fs.invalidate_cache()
            listed = self._fs.find(remote, detail=True)
            waiting = {
                name: entry
                for name, entry in waiting.items()
                if not self._arrived(folder / name, entry, f"{remote}/{name}", listed.get(f"{remote}/{name}"))
            }
            if not waiting:
                return
            logging.getLogger(__name__).warning("Resending what arrived damaged: %s.", ", ".join(waiting))
        raise StoreError(
            f"{remote}/{next(iter(waiting))} arrived damaged in {self._url} {ATTEMPTS} times.",
            "Check what lies between (a proxy, a gateway), then run again: nothing incomplete was published.",
        )

    def _arrived(self, source: Path, entry: FileEntry, target: str, listed: Mapping[str, Any] | None) -> bool:
        about = listed or self._fs.info(target)  # a listing may lag
        if about["size"] != entry.size:
            return False
        if not self._parts or str(about.get("ETag", "")).strip('"') == etag(source, entry.size):
            return True
        return self.digest(target) == entry.sha256

    def fetch(self, source: str, target: Path, entry: FileEntry) -> bool:
        """Fetch a file. Returns False if it had other bytes than `entry` in every attempt: the bucket's file is
        damaged. Raises FileNotFoundError."""
        for attempt in range(ATTEMPTS):
            if attempt:
                pause(attempt)
            with suppress(DamagedArtifact):
                self._fs.get_file(source, str(target))
                self.traffic.add(received=target.stat().st_size)
                if target.stat().st_size == entry.size and file_digest(target) == entry.sha256:
                    return True
        return False

    def digest(self, path: str) -> str:
        """SHA-256 of an object's bytes."""
        digest = hashlib.sha256()
        with self._fs.open(path, "rb") as file:
            while chunk := file.read(CHUNK):
                self.traffic.add(received=len(chunk))
                digest.update(chunk)
        return digest.hexdigest()


def part_bytes(size: int) -> int:
    """Bytes of a part of a file of this size."""
    return max(PART_BYTES, math.ceil(size / MOST_PARTS))


def etag(path: Path, size: int) -> str:
    """The ETag that S3 gives a file that was sent in parts of `part_bytes`."""
    part = part_bytes(size)
    with path.open("rb") as file:
        if size < 2 * part:
            return hashlib.file_digest(file, _md5).hexdigest()
        digests = [_md5(data).digest() for data in iter(lambda: file.read(part), b"")]
    return f"{_md5(b''.join(digests)).hexdigest()}-{len(digests)}"


def _md5(data: bytes = b"") -> Any:
    return hashlib.md5(data, usedforsecurity=False)
