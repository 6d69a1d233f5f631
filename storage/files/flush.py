"""Flushing to disk, so that files and directory entries survive a crash of the machine."""

from __future__ import annotations

import os
from pathlib import Path


def flush(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """fsync every file and folder below `folder`, and the folder itself."""
    for path in folder.rglob("*"):
        flush(path)
    flush(folder)
