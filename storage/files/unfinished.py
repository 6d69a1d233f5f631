"""Multipart uploads that a kill left unfinished. Their parts cost storage, and only a listing of uploads shows them."""

from __future__ import annotations

import errno
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from storage.errors import StoreError
from storage.files.remote import reaching, telling


class Upload(NamedTuple):
    """An unfinished upload, by the path of its intended object."""

    path: str
    id: str
    size: int  # bytes of the parts that arrived


class UnfinishedUploads:
    """The unfinished uploads of an S3 bucket, through `s3fs`."""

    def __init__(self, fs: Any, url: str) -> None:
        self._fs, self._url = fs, url

    def begun_before(self, folder: str, time: datetime) -> list[Upload]:
        """The uploads into a folder that began before a time, sorted, or empty if the service can't list them."""
        bucket, prefix, _ = self._fs.split_path(f"{folder}/")
        uploads: list[Upload] = []
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
                    size = self._size(bucket, upload["Key"], upload["UploadId"])
                    uploads.append(Upload(path, upload["UploadId"], size))
            if not page.get("IsTruncated"):
                return sorted(uploads)
            after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def abort(self, upload: Upload) -> None:
        """Delete the parts of an upload."""
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
