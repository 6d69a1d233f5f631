"""A folder of this machine as a place for a release: no link is followed, and no file is written that was there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from storage.digests import file_digest
from storage.errors import StoreError
from storage.store import STORE_FILE
from tasks.export.release_folder import entries, writing

_ELSEWHERE = "Name a folder of its own, or one that is not there yet."


class Folder:
    """A folder, there or not. Raises StoreError for one that can be none."""

    def __init__(self, path: Path, url: str, release: Path) -> None:
        with writing(path):
            self.url, self.path = url, path.resolve()
            _check(path, self.path, release.resolve())

    def names(self) -> Mapping[str, bool]:
        """What is below it, by name, and whether it is a plain file; an empty folder is none."""
        with writing(self.path):
            found = dict(entries(self.path)) if self.path.is_dir() else {}
            return {name: plain and not name.endswith("/") for name, plain in found.items() if name != "./"}

    def digest(self, name: str) -> str | None:
        """SHA-256 of a file; None where there is none."""
        with writing(self.path):
            return file_digest(self.path / name) if self._plain(name) else None

    def start(self, name: str, size: int) -> bytes:
        """The first bytes of a file."""
        with writing(self.path), (self.path / name).open("rb") as file:
            return file.read(size)

    def put(self, source: Path, name: str) -> None:
        """Copy a file. One that is there is unlinked first: its other names keep what they have."""
        target = self.path / name
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
            with os.fdopen(handle, "wb") as out, source.open("rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)

    def rename(self, old: str, new: str) -> None:
        """Move a file over another."""
        with writing(self.path):
            (self.path / old).replace(self.path / new)

    def remove(self, name: str) -> None:
        """Take a file away."""
        with writing(self.path):
            (self.path / name).unlink()

    def _plain(self, name: str) -> bool:
        return (self.path / name).is_file() and not (self.path / name).is_symlink()


def _check(given: Path, target: Path, release: Path) -> None:
    if given.is_symlink() and not given.exists():
        raise StoreError(f"{given} is a link to nothing.", _ELSEWHERE)
    if any((parent / STORE_FILE).is_file() for parent in (target, *target.parents)):
        raise StoreError(f"{target} lies in a store, which has its own files only.", "Name a folder outside of it.")
    if target.is_relative_to(release):
        raise StoreError(f"{target} lies in the release itself.", "Name a folder outside of it.")
    there = next(path for path in (target, *target.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise StoreError(f"{there} is a file and no folder.", _ELSEWHERE)
