"""Processes on other hosts end within a minute of their stage, even if kill -9 ends it.

On the stage's own host the kernel sees to that (die_with_parent.py). For other hosts the stage keeps a file in the
scratch folder, which the hosts share anyway, and a helper process that writes to it again and again. The helper ends
with the stage, but Ctrl-Z of the stage doesn't stop it.

A rank counts the time during which the file stays the same. It ends at once if the file begins with another name: the
stage has ended its training, and begun it again. Time spent in a read, or while reads fail, doesn't count, as a file
system that stalls also stalls the writer. The file is opened for each read, so that NFS asks its server.
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
    """Within the block, and as long as this process lives, `file` changes every few seconds. It also names the module
    that trains, for hosts that join."""
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
    """Kill this process when the stage that started it, on whatever host, no longer shows signs of life."""
    file = os.environ.get(VARIABLE)
    if file is not None:
        threading.Thread(target=_watch, args=(Path(file),), name="end-with-stage", daemon=True).start()


def _watch(file: Path) -> None:
    last, silent = "", 0.0
    while silent < PATIENCE_SECONDS:
        time.sleep(POLL_SECONDS)
        try:
            now = file.read_text()
        except FileNotFoundError:
            now = ""  # the stage has ended
        except OSError:
            continue
        if now in ("", last):  # a file being written is empty too
            silent += POLL_SECONDS
        elif last and now.split()[0] != last.split()[0]:
            break
        else:
            last, silent = now, 0.0
    with contextlib.suppress(OSError):
        os.set_blocking(2, False)  # a full pipe that nobody reads any more must not delay the end
        os.write(2, b"the stage that started this process has ended or restarted: the process ends\n")
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Run `python -m tasks.children.heartbeat FILE NAME`: write to the file until killed."""
    file, name = Path(sys.argv[1]), sys.argv[2]
    while True:
        with contextlib.suppress(OSError):
            file.write_text(f"{name} {time.time_ns()}")
        time.sleep(BEAT_SECONDS)


if __name__ == "__main__":
    main()
