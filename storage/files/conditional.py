"""Conditional writes: an object of a bucket is created or replaced only if nobody else was faster.

S3 and Azure take `If-None-Match: *` and `If-Match: ETag` with a PUT, and `If-Match` with a DELETE. They answer 412
where the object is another than the client believes (Azure 409 where it is there already), and S3 409 where two
requests came at once. An answer may be lost, and the client's own repetition be refused because of what its first
request wrote: after a refusal the object is read. So whoever writes must write bytes that nobody else would.

Google's service has such writes too (`ifGenerationMatch`), but nothing that could be run here honours them, so they are
not used: locks that were never seen to hold are none.
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
NEW = {"mode": "create"}  # s3fs and adlfs: where nothing may be
REFUSED = {"PreconditionFailed", "412", "NoSuchKey", "404"}
CONFLICT = {"ConditionalRequestConflict", "OperationAborted", "409"}
MOST_CONFLICTS = 8  # of one request
DAMAGED = "Look at what lies between (a proxy, a gateway), then run again."


@dataclass(frozen=True)
class Found:
    """An object as it was read. Its tag may be older than its bytes, never newer: a write by it is refused then."""

    data: bytes
    tag: str
    modified: datetime


class Conditional(ABC):
    """Conditional writes of one service. Every method raises StoreError where the bucket can't be reached."""

    def __init__(self, fs: Any, url: str) -> None:
        self._fs, self._url = fs, url
        self._remote = Remote(fs, url)

    def paths(self, folder: str) -> list[str]:
        """Every object below a folder, sorted."""
        self._fs.invalidate_cache()
        return sorted(map(str, self._remote.find(folder)))

    @abstractmethod
    def read(self, path: str) -> Found | None:
        """An object, or None if it does not exist."""

    def create(self, path: str, data: bytes) -> str | None:
        """Write an object where there is none. Returns its tag, or None where there is one."""
        return self._write(path, data, NEW)

    def swap(self, path: str, data: bytes, tag: str) -> str | None:
        """Replace the object that has this tag. Returns the new one, or None where the object is another, or gone."""
        return self._write(path, data, self._same(tag))

    def write(self, path: str, data: bytes) -> str | None:
        """Write an object, whatever is there."""
        return self._write(path, data, {})

    @abstractmethod
    def delete(self, path: str, tag: str) -> None:
        """Delete the object that has this tag; any other stays."""

    def are_honoured(self, path: str) -> bool:
        """Whether the service knows conditional writes: both kinds ask it to write what is at `path` already, which it
        must refuse. One that does not know them writes the same bytes again."""
        data = self._remote.cat_file(path)
        try:
            return not any(self._put(path, data, condition) for condition in (NEW, self._same(self._no_tag)))
        except StoreError as error:
            if getattr(error.__cause__, "errno", None) == errno.ENOSYS:
                return False
            raise

    _no_tag: str  # of no object

    @abstractmethod
    def _same(self, tag: str) -> Mapping[str, Any]:
        """Arguments of a write where the object with this tag must be."""

    @abstractmethod
    def _put(self, path: str, data: bytes, condition: Mapping[str, Any]) -> str | None:
        """The tag of what was written; None if it was refused."""

    @abstractmethod
    def _arrived(self, tag: str, data: bytes) -> bool:
        """Whether the tag of what was written says that these bytes arrived."""

    def _write(self, path: str, data: bytes, condition: Mapping[str, Any]) -> str | None:
        """What arrived damaged is written again. Returns None where the condition does not hold."""
        for _ in range(MOST_CONFLICTS):
            tag = self._put(path, data, condition)
            if tag is not None and self._arrived(tag, data):
                return tag
            try:
                found = self.read(path)  # encrypted objects have other tags
            except DamagedArtifact:
                if tag is None:
                    raise
            else:
                if found and found.data == data:
                    return found.tag
                if tag is None or found is None or found.tag != tag:
                    return None
            assert tag is not None
            condition = self._same(tag)
        raise StoreError(f"{path} arrived damaged in {self._url} {MOST_CONFLICTS} times.", DAMAGED)

    def _ask(self, request: str, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """What a conditional request returns; None if it is refused."""
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
            f"The store {self._url} refused to write {arguments[0]} {MOST_CONFLICTS} times, as others wrote it too.",
            "Run again.",
        )

    @abstractmethod
    def _code(self, error: BaseException) -> str:
        """The service's own code of an error."""


class S3Conditional(Conditional):
    """S3's, through `s3fs`."""

    _no_tag = '"0"'  # an MD5 digest has 32 digits

    def read(self, path: str) -> Found | None:
        try:
            info = self._remote.info(path, refresh=True)
            if info["type"] == "directory":
                return None
            data = self._remote.cat_file(path, max_concurrency=1)
        except FileNotFoundError:
            return None
        return Found(bytes(data), str(info["ETag"]), info["LastModified"])

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
        found = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")
        return str(found)


class AzureConditional(Conditional):
    """Azure's, through `adlfs`. The service checks the MD5 of what arrives."""

    _no_tag = '"0x0"'

    def read(self, path: str) -> Found | None:
        try:
            found: Found | None = self._ask("read", self._sync, self._read, path)
        except FileNotFoundError:
            return None
        return found

    def delete(self, path: str, tag: str) -> None:
        self._ask("delete", self._sync, self._delete, path, tag)
        self._fs.invalidate_cache()

    def _same(self, tag: str) -> Mapping[str, Any]:
        conditions = sys.modules["azure.core"].MatchConditions  # adlfs has imported it; no package of ours needs it
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

    async def _read(self, path: str) -> Found:
        async with self._client(path) as blob:
            stream = await blob.download_blob()
            data = await stream.readall()
        return Found(bytes(data), str(stream.properties.etag), stream.properties.last_modified)

    async def _delete(self, path: str, tag: str) -> None:
        async with self._client(path) as blob:
            await blob.delete_blob(**self._same(tag))


def conditional(fs: Any, url: str, protocols: Collection[str]) -> Conditional | None:
    """The conditional writes of a file system; None of one where they are not used."""
    for known, service in ((S3, S3Conditional), (AZURE, AzureConditional)):
        if known & {*protocols}:
            return service(fs, url)
    return None
