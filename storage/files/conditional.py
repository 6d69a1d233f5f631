"""Conditional writes: an object of a bucket is created or replaced only if nobody else was faster.

S3 takes `If-None-Match: *` and `If-Match: ETag` with a PUT, and `If-Match` with a DELETE. It answers 412 where the
object is another than the client believes, and 409 where two requests came at once. An answer may be lost, and the
client's own repetition be refused because of what its first request wrote: after a refusal the object is read. So
whoever writes must write bytes that nobody else would.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from storage.errors import DamagedArtifact, StoreError
from storage.files.remote import Remote, pause, reaching, telling

SERVICES = {"s3", "s3a"}  # whose conditional writes are used
REFUSED = {"PreconditionFailed", "412", "NoSuchKey", "404"}
CONFLICT = {"ConditionalRequestConflict", "OperationAborted", "409"}
MOST_CONFLICTS = 8  # of one request
DAMAGED = "Look at what lies between (a proxy, a gateway), then run again."
NO_TAG = '"0"'  # of no object: an MD5 digest has 32 digits


@dataclass(frozen=True)
class Found:
    """An object as it was read. Its tag may be older than its bytes, never newer: a write by it is refused then."""

    data: bytes
    tag: str
    modified: datetime


class Conditional:
    """Conditional writes through `s3fs`. Every method raises StoreError where the bucket can't be reached."""

    def __init__(self, fs: Any, url: str) -> None:
        self._fs, self._url = fs, url
        self._remote = Remote(fs, url)

    def paths(self, folder: str) -> list[str]:
        """Every object below a folder, sorted."""
        self._fs.invalidate_cache()
        return sorted(map(str, self._remote.find(folder)))

    def read(self, path: str) -> Found | None:
        """An object, or None if it does not exist."""
        try:
            info = self._remote.info(path, refresh=True)
            if info["type"] == "directory":
                return None
            data = self._remote.cat_file(path, max_concurrency=1)
        except FileNotFoundError:
            return None
        return Found(bytes(data), str(info["ETag"]), info["LastModified"])

    def create(self, path: str, data: bytes) -> str | None:
        """Write an object where there is none. Returns its tag, or None where there is one."""
        return self._write(path, data, mode="create")

    def swap(self, path: str, data: bytes, tag: str) -> str | None:
        """Replace the object that has this tag. Returns the new one, or None where the object is another, or gone."""
        return self._write(path, data, IfMatch=tag)

    def delete(self, path: str, tag: str) -> None:
        """Delete the object that has this tag; any other stays."""
        bucket, key, _ = self._fs.split_path(path)
        self._ask("delete", self._fs.call_s3, "delete_object", Bucket=bucket, Key=key, IfMatch=tag)
        self._fs.invalidate_cache()

    def are_honoured(self, path: str) -> bool:
        """Whether the service knows conditional writes: both kinds ask it to write what is at `path` already, which it
        must refuse. One that does not know them writes the same bytes again."""
        data = self._remote.cat_file(path)
        try:
            return not any(
                self._ask("write", self._fs.pipe_file, path, data, **condition)
                for condition in ({"mode": "create"}, {"IfMatch": NO_TAG})
            )
        except StoreError as error:
            if getattr(error.__cause__, "errno", None) == errno.ENOSYS:
                return False
            raise

    def write(self, path: str, data: bytes) -> str | None:
        """Write an object, whatever is there."""
        return self._write(path, data)

    def _write(self, path: str, data: bytes, **condition: str) -> str | None:
        """What arrived damaged is written again. Returns None where the condition does not hold."""
        digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
        for _ in range(MOST_CONFLICTS):
            answer = self._ask("write", self._fs.pipe_file, path, data, **condition)
            if answer is not None and answer["ETag"].strip('"') == digest:
                return str(answer["ETag"])
            try:
                found = self.read(path)  # encrypted objects have other ETags
            except DamagedArtifact:
                if answer is None:
                    raise
            else:
                if found and found.data == data:
                    return found.tag
                if answer is None or found is None or found.tag != answer["ETag"]:
                    return None
            condition = {"IfMatch": answer["ETag"]}
        raise StoreError(f"{path} arrived damaged in {self._url} {MOST_CONFLICTS} times.", DAMAGED)

    def _ask(self, request: str, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """What a conditional request returns; None if it is refused."""
        for conflicts in range(MOST_CONFLICTS):
            with reaching(self._url), telling(self._url, request):
                try:
                    return method(*arguments, **options)
                except OSError as error:
                    code = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")
                    if code in REFUSED:
                        return None
                    if code not in CONFLICT:
                        raise
            pause(conflicts)
        raise StoreError(
            f"The store {self._url} refused to write {arguments[0]} {MOST_CONFLICTS} times, as others wrote it too.",
            "Run again.",
        )
