"""Folders outside the store for a cluster's own files: sockets, logs, locks. Swept after a kill.

A folder is locked for as long as the process that made it lives. The next process removes those whose lock is free.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.files.locks import hold, hold_if_free

PREFIX = "gristmill-"
LOCK = "lock"
YOUNG = 60.0  # seconds; a folder that is being made has no lock yet
LONGEST = 30  # characters: Ray puts a socket 70 characters deeper, and Linux allows 107 (unix(7))


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A private folder with a short path, removed at the end of the block, or after a kill by the next call on this
    machine."""
    parent = Path(tempfile.gettempdir())
    if len(str(parent)) + len(PREFIX) + 9 > LONGEST:
        parent = Path("/tmp")
    _sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        with hold(folder / LOCK):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}????????"):
        try:
            status = folder.lstat()
        except FileNotFoundError:
            continue
        ours = status.st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink()
        if not ours or time.time() - status.st_mtime < YOUNG or not (folder / LOCK).exists():
            continue
        with hold_if_free(folder / LOCK) as free:
            if free:
                shutil.rmtree(folder, ignore_errors=True)
