"""A folder of this machine as a release's destination: no link is followed, and no existing file is written into."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from storage.digests import file_digest
from storage.errors import StoreError
from storage.store import STORE_FILE
from tasks.export.release_folder import entries, writing

_ELSEWHERE = "Name a folder of its own, or one that doesn't exist yet."


class Folder:
    """A folder that may not exist yet. Raises StoreError for a path that can't be a folder for a release."""

    def __init__(self, path: Path, url: str, release: Path) -> None:
        with writing(path):
            self.url, self.path = url, path.resolve()
            _check(path, self.path, release.resolve())

    def names(self) -> Mapping[str, bool]:
        """The entries below it by name, each with whether it is a plain file, which an empty folder isn't."""
        with writing(self.path):
            inside = dict(entries(self.path)) if self.path.is_dir() else {}
            return {name: plain and not name.endswith("/") for name, plain in inside.items() if name != "./"}

    def digest(self, name: str) -> str | None:
        """SHA-256 of a file, or None if it doesn't exist."""
        with writing(self.path):
            return file_digest(self.path / name) if self._plain(name) else None

    def start(self, name: str, size: int) -> bytes:
        """The first bytes of a file."""
        with writing(self.path), (self.path / name).open("rb") as file:
            return file.read(size)

    def put(self, source: Path, name: str) -> None:
        """Copy a file. An existing one is unlinked first, so that its other hard links keep their content."""
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
        """Remove a file."""
        with writing(self.path):
            (self.path / name).unlink()

    def _plain(self, name: str) -> bool:
        return (self.path / name).is_file() and not (self.path / name).is_symlink()


def _check(path: Path, target: Path, release: Path) -> None:
    if path.is_symlink() and not path.exists():
        raise StoreError(f"{path} is a link to nothing.", _ELSEWHERE)
    if any((parent / STORE_FILE).is_file() for parent in (target, *target.parents)):
        raise StoreError(f"{target} is in a store, which has its own files only.", "Name a folder outside it.")
    if target.is_relative_to(release):
        raise StoreError(f"{target} is in the release itself.", "Name a folder outside it.")
    nearest = next(each for each in (target, *target.parents) if os.path.lexists(each))
    if not nearest.is_dir():
        raise StoreError(f"{nearest} is a file, not a folder.", _ELSEWHERE)
