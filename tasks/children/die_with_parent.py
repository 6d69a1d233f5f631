"""Processes that end with their parent, by kill -9 of it too.

The kernel sends the signal (PR_SET_PDEATHSIG, prctl(2)), so nothing has to be polled and no parent has to live long
enough to clean up. A worker process, a training child and each rank of a launcher all use this one function.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
STAGE_PID = "GRISTMILL_STAGE_PID"  # the process of the stage, for ranks whose parent is a launcher


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent dies.

    `parent` is the pid to expect; without it any parent counts but the one that adopts orphans. A process whose parent
    died before the kernel was told ends at once.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    orphaned = os.getppid() != parent if parent else os.getppid() == 1 and os.environ.get(STAGE_PID) != "1"
    if orphaned:
        os.kill(os.getpid(), signal.SIGKILL)


def tied_to(parent: int, command: list[str]) -> list[str]:
    """`command` as a child of `parent` that ends with it.

    A process of its own sets the signal and then becomes the command, which is safer than code between fork and exec.
    """
    return [sys.executable, "-m", "tasks.children.die_with_parent", str(parent), *command]


def main() -> None:
    """`python -m tasks.children.die_with_parent PARENT COMMAND…`: end with PARENT, and become COMMAND."""
    parent, *command = sys.argv[1:]
    die_with_parent(int(parent))
    if os.getsid(0) == os.getpid():  # no terminal's Ctrl-C gets there
        # What a script starts in the background ignores Ctrl-C, and all below it too, while Prefect's worker ends by it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
