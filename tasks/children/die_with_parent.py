"""Processes that end with their parent, even if kill -9 ends it.

The kernel sends the signal (PR_SET_PDEATHSIG, prctl(2)), so nothing is polled and no parent has to live long enough to
clean up. Worker processes, training children and each rank of a launcher all use this one function.
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

    `parent` is the pid to expect. Without it any parent counts but pid 1, which adopts orphans. A process whose parent
    died before this call ends at once.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # A stage may run as pid 1 itself, in a container: then pid 1 is a parent like any other
    orphaned = os.getppid() != parent if parent else os.getppid() == 1 and os.environ.get(STAGE_PID) != "1"
    if orphaned:
        os.kill(os.getpid(), signal.SIGKILL)


def tied_to(parent: int, command: list[str]) -> list[str]:
    """`command` as a child of `parent` that ends with it.

    The started process sets the signal and then becomes the command, which is safer than code between fork and exec.
    """
    return [sys.executable, "-m", "tasks.children.die_with_parent", str(parent), *command]


def main() -> None:
    """Run `python -m tasks.children.die_with_parent PARENT COMMAND…`: end with PARENT, and become COMMAND."""
    parent, *command = sys.argv[1:]
    die_with_parent(int(parent))
    if os.getsid(0) == os.getpid():  # a session of its own, which no terminal's Ctrl-C reaches
        # A shell script's background jobs ignore SIGINT, and so do their children, but Prefect's worker ends by it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
