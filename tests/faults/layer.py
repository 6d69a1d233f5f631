"""The file layer that fails when it is told to: layer.c, compiled here, and the page of memory that it shares."""

from __future__ import annotations

import enum
import hashlib
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("layer.c")
SCALARS = struct.Struct("=10Q2q")  # as struct control begins in layer.c
MAIN = 10 * 8  # where the run's own process is in it
ROOT = 1024
VARIABLE = "GRISTMILL_FAULT_CONTROL"


class What(enum.IntFlag):
    """Classes of operations."""

    COMMITS = 1  # fsync, rename, unlink, truncate
    OPENS = 2  # of files to be written, and new folders
    WRITES = 4
    READS = 8


class Effect(enum.IntEnum):
    """What happens at the operation; FULL to SLOW last from then on."""

    NONE = 0
    KILL = 1  # SIGKILL to the process that operates
    KILL_MAIN = 2  # SIGKILL to the run's own process
    TORN = 3  # half of a write, then SIGKILL
    SIGNAL_MAIN = 4  # `value` to the run's own process
    FULL = 5
    READ_ONLY = 6
    ERROR = 7  # the error number `value`, once
    SHORT = 8  # writes that write half of what they are given, as they may
    SLOW = 9
    CLOCK = 10  # the clock jumps by `value` seconds
    STOPPED = 11  # SIGSTOP to the process that operates


@dataclass(frozen=True)
class Armed:
    """A fault and the operation that it comes at, from 1."""

    effect: Effect = Effect.NONE
    what: What = What.COMMITS
    at: int = 0  # never
    value: int = 0


def compiler() -> str | None:
    """A C compiler; None where there is none, and no layer."""
    return shutil.which("cc") or shutil.which("gcc")


class Layer:
    """The compiled layer and its page, in a folder."""

    def __init__(self, folder: Path) -> None:
        library = _compiled()
        self.page = folder / "faults"
        self.page.write_bytes(bytes(SCALARS.size + ROOT))
        with self.page.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), VARIABLE: str(self.page)}

    def arm(self, root: Path, fault: Armed | None = None) -> None:
        """From now on operations on files below `root` are counted, and the fault comes when its number does."""
        due = fault or Armed()
        self._memory[SCALARS.size :] = str(root).encode().ljust(ROOT, b"\0")
        self._memory[: SCALARS.size] = SCALARS.pack(1, due.effect, due.what, due.at, 0, 0, 0, 0, 0, 0, 0, due.value)

    def disarm(self) -> dict[What, int]:
        """How many operations there were of each class."""
        self._memory[:8] = bytes(8)
        return dict(zip((What.COMMITS, What.OPENS, What.WRITES, What.READS), self._scalars()[6:10], strict=True))

    @property
    def fired(self) -> bool:
        """Whether the fault has happened."""
        return bool(self._scalars()[5])

    @property
    def main(self) -> int:
        """The run's own process, which announces itself."""
        return self._scalars()[10]

    def _scalars(self) -> tuple[int, ...]:
        return SCALARS.unpack(self._memory[: SCALARS.size])


def announce() -> None:
    """Called by the run's own process: it is the one that KILL_MAIN and SIGNAL_MAIN mean."""
    page = os.environ.get(VARIABLE)
    if page:
        with Path(page).open("r+b") as file:
            file.seek(MAIN)
            file.write(struct.pack("=q", os.getpid()))


def _compiled() -> Path:
    """The shared library, compiled once for each state of the source."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    library = Path(tempfile.gettempdir()) / f"gristmill-faults-{os.getuid()}-{digest}.so"
    if not library.exists():
        draft = library.with_suffix(f".{os.getpid()}")
        command = [
            compiler() or "cc",
            "-shared",
            "-fPIC",
            "-O2",
            "-Wall",
            "-Werror",
            "-o",
            str(draft),
            str(SOURCE),
            "-ldl",
        ]
        subprocess.run(command, check=True)
        draft.rename(library)
    return library
