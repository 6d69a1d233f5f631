"""Content: what an artifact turned out to be, checkable by hand.

A file's digest is its SHA-256. A folder's digest is the SHA-256 of its file list in the format of `sha256sum`, sorted
by path, so that `(cd artifact && sha256sum -c SHA256SUMS)` and `sha256sum SHA256SUMS` prove an artifact without us.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from storage.errors import StoreError

CHUNK = 1 << 20


class FileEntry(BaseModel):
    """One file of an artifact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    size: int


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def list_files(folder: Path) -> dict[str, FileEntry]:
    """Every file below `folder`, by its posix path relative to it, sorted.

    Raises StoreError for a symbolic link: it would point outside what is immutable.
    """
    entries: dict[str, FileEntry] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise StoreError(f"{name} is a symbolic link.", "A stage must write plain files into its output folder.")
        if path.is_file():
            entries[name] = FileEntry(sha256=file_digest(path), size=path.stat().st_size)
    return entries


def sums(files: Mapping[str, FileEntry]) -> str:
    """The file list as `sha256sum` writes and checks it."""
    return "".join(f"{entry.sha256}  {name}\n" for name, entry in sorted(files.items()))


def tree_digest(files: Mapping[str, FileEntry]) -> str:
    """The digest of a folder: SHA-256 of its `sums`."""
    return hashlib.sha256(sums(files).encode()).hexdigest()


def part_of(files: Mapping[str, FileEntry], part: str) -> dict[str, FileEntry]:
    """The files below the folder `part`, with paths relative to it."""
    prefix = f"{part}/"
    return {name.removeprefix(prefix): entry for name, entry in files.items() if name.startswith(prefix)}
