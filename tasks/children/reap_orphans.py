"""Kills the processes of libraries that would outlive the process that started them.

Not everything that a library starts asks the kernel to end with its parent (`die_with_parent.py`): helpers of Ray look
for a killed cluster for minutes. A watcher waits on a pipe that closes when this process ends, even by kill -9, and
kills what is left. It has a session of its own, which no Ctrl-C reaches.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Process = tuple[int, str]  # pid, and when it started: the kernel uses a pid again


def descendants(parent: int) -> set[Process]:
    """The processes below one, at any depth."""
    children: dict[int, list[Process]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (found := _stat(int(folder.name))):
            children.setdefault(found[0], []).append((int(folder.name), found[1]))
    found_below, waiting = set[Process](), [parent]
    while waiting:
        below = children.get(waiting.pop(), [])
        found_below.update(below)
        waiting += [pid for pid, _ in below]
    return found_below


@contextmanager
def ended_with_us(processes: set[Process]) -> Iterator[None]:
    """Those of these processes that live when the block ends, or this process does, are killed."""
    names = [f"{pid}:{started}" for pid, started in sorted(processes)]
    command = [sys.executable, "-m", "tasks.children.reap_orphans", *names]
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd=root):
        yield


def _stat(pid: int) -> tuple[int, str] | None:
    """The parent of a process and its start, in ticks since the machine's (proc(5)); None for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), fields[19]


def main() -> None:
    """`python -m tasks.children.reap_orphans PID:START…`: when stdin ends, kill these."""
    sys.stdin.read()
    for name in sys.argv[1:]:
        pid, _, started = name.partition(":")
        found = _stat(int(pid))
        if found and found[1] == started:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    main()
