"""Content digests that can be checked by hand.

A file's digest is its SHA-256. A folder's digest is the SHA-256 of its file list in the format of `sha256sum`, sorted
by path, so `(cd artifact && sha256sum -c SHA256SUMS)` and `sha256sum SHA256SUMS` verify an artifact without Gristmill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from storage.errors import StoreError

CHUNK = 1 << 20
DIGEST = "^[0-9a-f]{64}$"  # SHA-256, in hex


class FileEntry(BaseModel):
    """One file of an artifact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str = Field(pattern=DIGEST)
    size: int


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def list_files(folder: Path) -> dict[str, FileEntry]:
    """Every file below `folder`, by its POSIX path relative to it, sorted.

    Raises StoreError for a symbolic link, since its target could change.
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
    """The file list in the format of `sha256sum`."""
    return "".join(f"{entry.sha256}  {name}\n" for name, entry in sorted(files.items()))


def tree_digest(files: Mapping[str, FileEntry]) -> str:
    """A folder's digest: the SHA-256 of its `sums`."""
    return hashlib.sha256(sums(files).encode()).hexdigest()


def part_of(files: Mapping[str, FileEntry], part: str) -> dict[str, FileEntry]:
    """The files below the subfolder `part`, by their paths relative to it, or all files for an empty name."""
    prefix = f"{part}/" if part else ""
    return {name.removeprefix(prefix): entry for name, entry in files.items() if name.startswith(prefix)}
