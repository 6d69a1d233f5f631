"""Flushing to disk, so that files and directory entries survive a crash of the machine."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

AT_ONCE = 8


def flush(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """fsync every file and folder below `folder`, and the folder itself."""
    with ThreadPoolExecutor(AT_ONCE) as pool:  # a journal commits waiting writes together
        list(pool.map(flush, folder.rglob("*")))
    flush(folder)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Make a hard link to a file, or a copy if that is impossible."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
