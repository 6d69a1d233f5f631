"""Multipart uploads that were never finished: the process was killed. Their parts cost storage, and no listing shows
them but that of the uploads."""

from __future__ import annotations

import errno
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from storage.errors import StoreError
from storage.files.remote import reaching, telling


class Upload(NamedTuple):
    """An unfinished upload, by the path of the object that it was to become."""

    path: str
    id: str
    size: int  # bytes of the parts that arrived


class UnfinishedUploads:
    """Those of a bucket of S3, through `s3fs`."""

    def __init__(self, fs: Any, url: str) -> None:
        self._fs, self._url = fs, url

    def begun_before(self, folder: str, time: datetime) -> list[Upload]:
        """Those of objects in a folder that began before a time, sorted; none where the service can't list them."""
        bucket, prefix, _ = self._fs.split_path(f"{folder}/")
        found: list[Upload] = []
        after: dict[str, str] = {}
        while True:
            try:
                page = self._ask("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **after)
            except StoreError as error:
                if getattr(error.__cause__, "errno", None) == errno.ENOSYS:
                    return []
                raise
            for upload in page.get("Uploads", ()):
                if upload["Initiated"] < time:
                    path = f"{bucket}/{upload['Key']}"
                    found.append(
                        Upload(path, upload["UploadId"], self._size(bucket, upload["Key"], upload["UploadId"]))
                    )
            if not page.get("IsTruncated"):
                return sorted(found)
            after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def abort(self, upload: Upload) -> None:
        """Delete its parts."""
        bucket, key, _ = self._fs.split_path(upload.path)
        with suppress(FileNotFoundError):  # finished or aborted meanwhile
            self._ask("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload.id)

    def _size(self, bucket: str, key: str, upload: str) -> int:
        size, after = 0, 0
        with suppress(FileNotFoundError):
            while True:
                page = self._ask("list_parts", Bucket=bucket, Key=key, UploadId=upload, PartNumberMarker=after)
                size += sum(int(part["Size"]) for part in page.get("Parts", ()))
                if not page.get("IsTruncated"):
                    break
                after = page["NextPartNumberMarker"]
        return size

    def _ask(self, request: str, **options: Any) -> Any:
        with reaching(self._url), telling(self._url, request):
            return self._fs.call_s3(request, **options)
