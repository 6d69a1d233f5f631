"""A bucket or a server, of any kind that fsspec knows, as a release's destination."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storage.digests import CHUNK
from storage.errors import StoreError
from storage.files.remote import ANSWERS, Remote, reaching


class Bucket:
    """A folder of a bucket or, with `folders`, of a server, where folders must be made before files."""

    def __init__(self, fs: Any, root: str, url: str, *, folders: bool = False) -> None:
        self.fs, self.root, self.url, self.folders = Remote(fs, url), root, url, folders

    def names(self) -> Mapping[str, bool]:
        """Each file below it, without the empty objects that a console creates for folders."""
        self.fs.invalidate_cache()
        try:
            objects: Mapping[str, Any] = self.fs.find(self.root, detail=True)
        except FileNotFoundError as error:  # a folder of a bucket need not exist, but the bucket must
            if self.folders:
                return {}
            raise StoreError(
                f"The bucket of {self.url} doesn't exist.", "Create it, or correct the address."
            ) from error
        return {self._name(path): True for path, about in objects.items() if not self._marks_a_folder(path, about)}

    def _marks_a_folder(self, path: str, about: Mapping[str, Any]) -> bool:
        keys = (path, str(about.get("Key", "")), str(about.get("name", "")))
        return not about.get("size") and (any(key.endswith("/") for key in keys) or about.get("type") == "directory")

    def _name(self, path: str) -> str:
        return str(path).removeprefix(self.root).lstrip("/") or "a file of this very name"

    def digest(self, name: str) -> str | None:
        """SHA-256 of a file, or None if it doesn't exist."""
        digest = hashlib.sha256()
        try:
            with reaching(self.url), self.fs.open(f"{self.root}/{name}", "rb") as file:
                while block := file.read(CHUNK):
                    digest.update(block)
        except FileNotFoundError:
            return None
        return digest.hexdigest()

    def start(self, name: str, size: int) -> bytes:
        """The first bytes of a file."""
        with self._answered(name), reaching(self.url), self.fs.open(f"{self.root}/{name}", "rb") as file:
            return bytes(file.read(size))

    def put(self, source: Path, name: str) -> None:
        """Copy a file to it."""
        place = f"{self.root}/{name}"
        with self._answered(name):
            if self.folders:
                self.fs.makedirs(place.rpartition("/")[0], exist_ok=True)
            self.fs.put_file(str(source), place)

    def rename(self, old: str, new: str) -> None:
        """Move a file over another: by a copy and a removal, as a bucket can't rename."""
        with self._answered(new):
            self.fs.pipe_file(f"{self.root}/{new}", self.fs.cat_file(f"{self.root}/{old}"))
        self.remove(old)

    def remove(self, name: str) -> None:
        """Remove a file."""
        with self._answered(name):
            self.fs.rm_file(f"{self.root}/{name}")

    @contextmanager
    def _answered(self, name: str) -> Iterator[None]:
        try:
            yield
        except ANSWERS as error:
            reason = str(error) or type(error).__name__
            raise StoreError(f"{self.url} refused {name}: {reason.rstrip('.')}.", "Correct the address.") from error
