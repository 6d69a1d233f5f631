"""Disks: where a folder's begins, and a full one recognised, from the operating system's error or a library's."""

from __future__ import annotations

import errno
from pathlib import Path

from storage.errors import causes

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, the user's quota, the limit of a single file
SAID = (  # messages of libraries that lose the error number
    "No space left on device",
    "Disk quota exceeded",
    "PytorchStreamWriter failed writing file",
    ". unexpected pos ",  # torch.save, when it has written less than it expected
)


def disk_full(error: BaseException) -> BaseException | None:
    """The innermost error that says that a file could not grow, among an error, its causes, and the errors of several
    ranks that it may have collected; None if there is none."""
    found = None
    for one in causes(error):
        if (isinstance(one, OSError) and one.errno in FULL) or any(said in str(one) for said in SAID):
            found = one
    return found


def mount(folder: Path) -> Path:
    """The mount point of the file system of `folder`."""
    there = existing(folder)
    while there != there.parent and there.parent.stat().st_dev == there.stat().st_dev:
        there = there.parent
    return there


def existing(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
