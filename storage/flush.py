"""What was written is on the disk: files, and the names in folders, survive a crash of the machine after this."""

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
    """fsync every file and folder below `folder`, and itself."""
    for path in folder.rglob("*"):
        flush(path)
    flush(folder)
