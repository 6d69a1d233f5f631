"""Content digests that can be checked by hand.

A file's digest is its SHA-256. A folder's digest is the SHA-256 of its file list in the format of `sha256sum`, sorted
by path, so `(cd artifact && sha256sum -c SHA256SUMS)` and `sha256sum SHA256SUMS` verify an artifact without Gristmill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from storage.errors import StoreError

CHUNK = 1 << 20
AT_ONCE = 8
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


def file_digests(paths: Iterable[Path]) -> Iterator[str]:
    """`file_digest` of each, in their order, some at a time: hashing releases the interpreter's lock."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(file_digest, paths)


def list_files(folder: Path) -> dict[str, FileEntry]:
    """Every file below `folder`, by its POSIX path relative to it, sorted.

    Raises StoreError for a symbolic link, since its target could change.
    """
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    for name, path in paths.items():
        if path.is_symlink():
            raise StoreError(f"{name} is a symbolic link.", "A stage must write plain files into its output folder.")
    files = {name: path for name, path in paths.items() if path.is_file()}
    digests = zip(files.items(), file_digests(files.values()), strict=True)
    return {name: FileEntry(sha256=digest, size=path.stat().st_size) for (name, path), digest in digests}


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
