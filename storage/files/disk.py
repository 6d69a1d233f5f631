"""Disks: mount points, and recognising faults (full, not writable, broken) by error number or message."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import stat
from collections.abc import Container
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from storage.errors import GristmillError, StoreError, causes

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, the user's quota, the limit of a single file
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
BROKEN = (errno.EIO, errno.ESTALE, errno.EUCLEAN, errno.EBADMSG)
# Messages of libraries that lose the error number. Those in Rust (safetensors, tokenizers) quote the system's message
SAID_FULL = re.compile(
    r"No space left on device|Disk quota exceeded|File too large \(os error|\[Errno 27\] File too large"
    r"|\d+ requested and \d+ written"  # numpy, which also writes GGUF files
    r"|database or disk is full"  # SQLite
    r"|PytorchStreamWriter failed writing file|\. unexpected pos "  # torch.save; the latter where it wrote a part
)
SAID_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded|database or disk is full")
SAID_CLOSED = re.compile(r"Read-only file system|readonly database")
SAID_BROKEN = re.compile(r"Input/output error|disk I/O error")


def disk_full(error: BaseException) -> BaseException | None:
    """The innermost error, among an error, its causes, and the errors of ranks that it may have collected, that says
    that a file could not grow, or None."""
    return _innermost(error, FULL, SAID_FULL)


def cant_write(error: BaseException) -> bool:
    """Whether an error says that a file system, a folder or a bucket may not be written."""
    refused = any(isinstance(one, PermissionError) for one in causes(error))  # a bucket's has no number
    return refused or _innermost(error, CLOSED, SAID_CLOSED) is not None


def disk_fault(error: BaseException, folder: Path | None = None, doing: str = "") -> StoreError | None:
    """The StoreError for an error that comes from a disk, or None for any other. `folder` is the folder being written,
    if known, and `doing` the activity, such as a stage's name."""
    stopped = f" {doing} stopped. Nothing incomplete was published." if doing else ""
    if fault := disk_full(error):
        kept = "and run again: finished shards and checkpoints are kept."
        limit = _file_limit(fault)
        if limit is not None:
            message = f"A file reached this process's limit of {limit / 1e6:,.1f} MB."
            return StoreError(f"{message}{stopped}", f"Raise the limit (`ulimit -f unlimited`) {kept}")
        where = f"The disk of {folder} is full." if folder else f"The disk is full: {_first_line(fault)}"
        return StoreError(f"{where}{stopped}", f"Free space (`gristmill store gc`) {kept}")
    if fault := _innermost(error, CLOSED, SAID_CLOSED):
        remedy = (
            "Give this user access, or choose another store (--set runtime.store=…). A run that finds all "
            "its artifacts in a store only reads it."
        )
        return StoreError(f"{_named(fault, folder)}.{stopped}", remedy)
    if fault := _innermost(error, BROKEN, SAID_BROKEN):
        remedy = "Check the disk and its log (`dmesg`). Then `gristmill store verify` reports what was damaged."
        return StoreError(f"{_named(fault, folder)}.{stopped}", remedy)
    return None


class DiskFaults(AbstractContextManager[None]):
    """Turns disk faults within the block into StoreErrors (`disk_fault`), whatever type a library raises."""

    def __init__(self, folder: Path | None = None, doing: str = "") -> None:
        self.folder, self.doing = folder, doing

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, GristmillError):
            return
        fault = disk_fault(error, self.folder, self.doing)
        if fault is not None:
            raise fault from error


def _innermost(error: BaseException, numbers: Container[int | None], said: re.Pattern[str]) -> BaseException | None:
    innermost = None
    for one in causes(error):
        if (isinstance(one, OSError) and one.errno in numbers) or said.search(str(one)):
            innermost = one
    return innermost


def _named(error: BaseException, folder: Path | None) -> str:
    """`FILE can't be used: REASON`."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)} can't be used: {error.strerror}"
    return f"{folder or 'A file'} can't be used: {_first_line(error)}"


def _file_limit(error: BaseException) -> int | None:
    """This process's limit of bytes a file, if that caused an error of a full disk. torch's own error has no number, so
    a limit, if any, counts as its cause."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    disk = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return None if limit == resource.RLIM_INFINITY or disk or SAID_NO_ROOM.search(str(error)) else limit


def _first_line(error: BaseException) -> str:
    if isinstance(error, shutil.Error):  # it collects errors of several files
        return "{1}: {2}".format(*error.args[0][0])
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def mount(folder: Path) -> Path:
    """The mount point of the file system of `folder`."""
    path = existing(folder)
    while path != path.parent and path.parent.stat().st_dev == path.stat().st_dev:
        path = path.parent
    return path


def existing(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def open_up(folder: Path, mode: int) -> None:
    """Let whoever may read a file of `mode` read every file below the folder: libraries that write through a temporary
    file leave it readable only by its owner. The content of a folder of mode 0700 stays private."""
    readable = stat.S_IMODE(mode) & (stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)
    for path in folder.rglob("*"):
        present = stat.S_IMODE(path.lstat().st_mode)
        if path.is_file() and present & readable != readable:
            path.chmod(present | readable)
