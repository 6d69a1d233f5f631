"""Conditional writes: an object of a bucket is created or replaced only if nobody else was faster.

S3 and Azure accept `If-None-Match: *` and `If-Match: ETag` with a PUT, and `If-Match` with a DELETE. They answer 412 if
the object differs from what the client expects (Azure 409 if it already exists), and S3 answers 409 if two requests
arrive at once. An answer may be lost, and the client's retry is then refused because of its own first request. So a
refusal is followed by a read, and a writer must write bytes that nobody else would.

Google's service has such writes too (`ifGenerationMatch`), but no emulator that we could run honours them, so they are
not used: an untested lock is not a lock.
"""

from __future__ import annotations

import errno
import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from storage.errors import DamagedArtifact, StoreError
from storage.files.remote import Remote, pause, reaching, telling, unreachable

S3 = {"s3", "s3a"}
AZURE = {"abfs", "abfss", "az"}
NEW = {"mode": "create"}  # for s3fs and adlfs: only if the object doesn't exist
REFUSED = {"PreconditionFailed", "412", "NoSuchKey", "404"}
CONFLICT = {"ConditionalRequestConflict", "OperationAborted", "409"}
MOST_CONFLICTS = 8  # of one request
DAMAGED = "Check what lies between (a proxy, a gateway), then run again."


@dataclass(frozen=True)
class Item:
    """An object as read. Its tag may be older than its bytes, but never newer: a write with an old tag is refused."""

    data: bytes
    tag: str
    modified: datetime


class Conditional(ABC):
    """Conditional writes of one service. Every method raises StoreError if the bucket can't be reached."""

    def __init__(self, fs: Any, url: str) -> None:
        self._fs, self._url = fs, url
        self._remote = Remote(fs, url)

    def paths(self, folder: str) -> list[str]:
        """Every object below a folder, sorted."""
        self._fs.invalidate_cache()
        return sorted(map(str, self._remote.find(folder)))

    @abstractmethod
    def read(self, path: str) -> Item | None:
        """An object, or None if it does not exist."""

    def create(self, path: str, data: bytes) -> str | None:
        """Write a new object. Returns its tag, or None if it already exists."""
        return self._write(path, data, NEW)

    def swap(self, path: str, data: bytes, tag: str) -> str | None:
        """Replace the object that has this tag. Returns the new tag, or None if the object has changed or is gone."""
        return self._write(path, data, self._same(tag))

    def write(self, path: str, data: bytes) -> str | None:
        """Write an object unconditionally."""
        return self._write(path, data, {})

    @abstractmethod
    def delete(self, path: str, tag: str) -> None:
        """Delete the object if it has this tag."""

    def are_honoured(self, path: str) -> bool:
        """Whether the service honours conditional writes. Both kinds try to rewrite what is at `path` already, which it
        must refuse. A service that ignores conditions writes the same bytes again."""
        data = self._remote.cat_file(path)
        try:
            return not any(self._put(path, data, condition) for condition in (NEW, self._same(self._no_tag)))
        except StoreError as error:
            if getattr(error.__cause__, "errno", None) == errno.ENOSYS:
                return False
            raise

    _no_tag: str  # a tag that no object has

    @abstractmethod
    def _same(self, tag: str) -> Mapping[str, Any]:
        """The arguments of a write that requires the object with this tag."""

    @abstractmethod
    def _put(self, path: str, data: bytes, condition: Mapping[str, Any]) -> str | None:
        """Write, and return the new tag, or None if it was refused."""

    @abstractmethod
    def _arrived(self, tag: str, data: bytes) -> bool:
        """Whether the tag of a written object shows that these bytes arrived."""

    def _write(self, path: str, data: bytes, condition: Mapping[str, Any]) -> str | None:
        """Write, and write again what arrived damaged. Returns the tag, or None if the condition does not hold."""
        for _ in range(MOST_CONFLICTS):
            tag = self._put(path, data, condition)
            if tag is not None and self._arrived(tag, data):
                return tag
            # Refused, or a tag that shows nothing, as of an encrypted object: the object itself decides
            try:
                stored = self.read(path)
            except DamagedArtifact:
                if tag is None:
                    raise
            else:
                if stored and stored.data == data:
                    return stored.tag  # ours, maybe written by a request whose answer was lost
                if tag is None or stored is None or stored.tag != tag:
                    return None  # somebody else's
            assert tag is not None
            condition = self._same(tag)  # ours but damaged: replace exactly that object
        raise StoreError(f"{path} arrived damaged in {self._url} {MOST_CONFLICTS} times.", DAMAGED)

    def _ask(self, request: str, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """The result of a conditional request, or None if it is refused."""
        for conflicts in range(MOST_CONFLICTS):
            with reaching(self._url), telling(self._url, request):
                try:
                    return method(*arguments, **options)
                except unreachable() as error:
                    code = self._code(error)
                    if code in REFUSED:
                        return None
                    if code not in CONFLICT:
                        raise
            pause(conflicts)
        raise StoreError(
            f"The store {self._url} refused to write {arguments[0]} {MOST_CONFLICTS} times, because of other writers.",
            "Run again.",
        )

    @abstractmethod
    def _code(self, error: BaseException) -> str:
        """The service's code of an error."""


class S3Conditional(Conditional):
    """Conditional writes of S3, through `s3fs`."""

    _no_tag = '"0"'  # an MD5 digest has 32 digits

    def read(self, path: str) -> Item | None:
        try:
            info = self._remote.info(path, refresh=True)
            if info["type"] == "directory":
                return None
            data = self._remote.cat_file(path, max_concurrency=1)
        except FileNotFoundError:
            return None
        return Item(bytes(data), str(info["ETag"]), info["LastModified"])

    def delete(self, path: str, tag: str) -> None:
        bucket, key, _ = self._fs.split_path(path)
        self._ask("delete", self._fs.call_s3, "delete_object", Bucket=bucket, Key=key, IfMatch=tag)
        self._fs.invalidate_cache()

    def _same(self, tag: str) -> Mapping[str, Any]:
        return {"IfMatch": tag}

    def _put(self, path: str, data: bytes, condition: Mapping[str, Any]) -> str | None:
        answer = self._ask("write", self._fs.pipe_file, path, data, **condition)
        return None if answer is None else str(answer["ETag"])

    def _arrived(self, tag: str, data: bytes) -> bool:
        return tag.strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest()

    def _code(self, error: BaseException) -> str:
        return str(getattr(error.__cause__, "response", {}).get("Error", {}).get("Code"))


class AzureConditional(Conditional):
    """Conditional writes of Azure, through `adlfs`. The service checks the MD5 of what arrives."""

    _no_tag = '"0x0"'

    def read(self, path: str) -> Item | None:
        try:
            item: Item | None = self._ask("read", self._sync, self._read, path)
        except FileNotFoundError:
            return None
        return item

    def delete(self, path: str, tag: str) -> None:
        self._ask("delete", self._sync, self._delete, path, tag)
        self._fs.invalidate_cache()

    def _same(self, tag: str) -> Mapping[str, Any]:
        conditions = sys.modules["azure.core"].MatchConditions  # imported by adlfs, and not a dependency of ours
        return {"etag": tag, "match_condition": conditions.IfNotModified}

    def _put(self, path: str, data: bytes, condition: Mapping[str, Any]) -> str | None:
        try:
            answer = self._ask("write", self._fs.pipe_file, path, data, validate_content=True, **condition)
        except FileExistsError:
            return None
        return None if answer is None else str(answer["etag"])

    def _arrived(self, tag: str, data: bytes) -> bool:
        return True

    def _code(self, error: BaseException) -> str:
        if getattr(error, "error_code", "") == "ContainerNotFound":
            raise FileNotFoundError(str(error)) from error
        return str(getattr(error, "status_code", ""))

    def _sync(self, coroutine: Callable[..., Any], *arguments: Any) -> Any:
        from fsspec.asyn import sync

        return sync(self._fs.loop, coroutine, *arguments)

    def _client(self, path: str) -> Any:
        container, blob, _ = self._fs.split_path(path)
        return self._fs.service_client.get_blob_client(container=container, blob=blob)

    async def _read(self, path: str) -> Item:
        async with self._client(path) as blob:
            stream = await blob.download_blob()
            data = await stream.readall()
        return Item(bytes(data), str(stream.properties.etag), stream.properties.last_modified)

    async def _delete(self, path: str, tag: str) -> None:
        async with self._client(path) as blob:
            await blob.delete_blob(**self._same(tag))


def conditional(fs: Any, url: str, protocols: Collection[str]) -> Conditional | None:
    """The conditional writes of a file system, or None if we don't use any."""
    for known, service in ((S3, S3Conditional), (AZURE, AzureConditional)):
        if known & {*protocols}:
            return service(fs, url)
    return None
