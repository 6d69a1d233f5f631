"""Kills the processes of libraries that would outlive the process that started them.

Some libraries start processes that don't ask the kernel to end with their parent (`die_with_parent.py`): Ray's helpers
look for a killed cluster for minutes. A watcher waits on a pipe that closes when this process ends, even by kill -9,
and kills the rest. It has a session of its own, which no Ctrl-C reaches.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Process = tuple[int, str]  # pid and start time, as the kernel reuses pids


def descendants(parent: int) -> set[Process]:
    """The processes below `parent`, at any depth."""
    children: dict[int, list[Process]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (stat := _stat(int(folder.name))):
            children.setdefault(stat[0], []).append((int(folder.name), stat[1]))
    everyone, waiting = set[Process](), [parent]
    while waiting:
        below = children.get(waiting.pop(), [])
        everyone.update(below)
        waiting += [pid for pid, _ in below]
    return everyone


@contextmanager
def ended_with_us(processes: set[Process]) -> Iterator[None]:
    """Kill those of `processes` that are still alive when the block or this process ends."""
    names = [f"{pid}:{started}" for pid, started in sorted(processes)]
    command = [sys.executable, "-m", "tasks.children.reap_orphans", *names]
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd=root):
        yield


def _stat(pid: int) -> tuple[int, str] | None:
    """The parent of a process, and its start in ticks since boot (proc(5)). None for a process that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), fields[19]


def main() -> None:
    """Run `python -m tasks.children.reap_orphans PID:START…`: when stdin ends, kill these."""
    sys.stdin.read()
    for name in sys.argv[1:]:
        pid, _, started = name.partition(":")
        stat = _stat(int(pid))
        if stat and stat[1] == started:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    main()
