"""Processes on other hosts end within a minute when their stage does, by kill -9 of it too.

On the stage's own host the kernel sees to that (die_with_parent.py). For other hosts the stage has a file in
the scratch folder, which they share anyway, and a process beside it that writes to the file again and again. That
process is tied to the stage and ends with it, but isn't stopped with it (Ctrl-Z).

A rank counts the time in which it read the same. It ends at once where the file begins with another name: the stage
has ended its training, and begun it again. Time that a read took, or in which reading failed, doesn't count: a
file system that stalls, stalls the writer too. The file is opened for each reading, upon which NFS asks its server.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tasks.children.die_with_parent import tied_to

FILE = "alive"
VARIABLE = "GRISTMILL_ALIVE"  # the file, for ranks
BEAT_SECONDS = 5.0
POLL_SECONDS = 2.0
PATIENCE_SECONDS = 40.0


@contextlib.contextmanager
def shown_alive(file: Path, module: str) -> Iterator[None]:
    """Within the block, and as long as this process lives, `file` changes every few seconds. It tells hosts that would
    take part which module trains."""
    name = f"{secrets.token_hex(4)} {module}"
    file.write_text(f"{name} 0")
    command = tied_to(os.getpid(), [sys.executable, "-m", "tasks.children.heartbeat", str(file), name])
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()
        file.unlink(missing_ok=True)


def end_with_stage() -> None:
    """Have this process killed when the stage that started it, from whatever host, shows no life any more."""
    file = os.environ.get(VARIABLE)
    if file is not None:
        threading.Thread(target=_watch, args=(Path(file),), name="end-with-stage", daemon=True).start()


def _watch(file: Path) -> None:
    said, silent = "", 0.0
    while silent < PATIENCE_SECONDS:
        time.sleep(POLL_SECONDS)
        try:
            now = file.read_text()
        except FileNotFoundError:
            now = ""  # the stage has ended
        except OSError:
            continue
        if now in ("", said):  # empty while it is written too
            silent += POLL_SECONDS
        elif said and now.split()[0] != said.split()[0]:
            break
        else:
            said, silent = now, 0.0
    with contextlib.suppress(OSError):
        os.set_blocking(2, False)  # nobody may be left to read it
        os.write(2, b"the stage that started this process has ended or begun anew: the process ends\n")
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """`python -m tasks.children.heartbeat FILE NAME`: write into it until killed."""
    file, name = Path(sys.argv[1]), sys.argv[2]
    while True:
        with contextlib.suppress(OSError):
            file.write_text(f"{name} {time.time_ns()}")
        time.sleep(BEAT_SECONDS)


if __name__ == "__main__":
    main()
