"""How a disk that is full shows: as the system's error, or as what a library made of it."""

from __future__ import annotations

import errno
from collections.abc import Iterator

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of the disk, of what a user may have, of one file
SAID = (  # where the system's number is lost
    "No space left on device",
    "Disk quota exceeded",
    "PytorchStreamWriter failed writing file",
    ". unexpected pos ",  # what torch.save says in the end, having written less than it thinks
)


def disk_full(error: BaseException) -> BaseException | None:
    """Of an error, what it came from, and those that it gathered from several ranks, the innermost that says that a
    file could not grow; None where none does."""
    found = None
    for one in _all(error, set()):
        if (isinstance(one, OSError) and one.errno in FULL) or any(said in str(one) for said in SAID):
            found = one
    return found


def _all(error: BaseException | None, seen: set[int]) -> Iterator[BaseException]:
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield error
    yield from _all(error.__cause__ or error.__context__, seen)
    for failure, *_ in getattr(error, "failures", {}).values():  # torch.distributed.checkpoint's, by rank
        yield from _all(failure, seen)
