"""Attacks on the sandbox, and checks of whether they did harm."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tasks.sandbox.levels import means_here
from tasks.sandbox.worker import Means

LEAST = 0.05  # seconds between looks

EVERYTHING = Means(namespaces=True, landlock=True, seccomp=True)
NAMESPACES = Means(namespaces=True, landlock=False, seccomp=False)
FILTERS = Means(namespaces=False, landlock=True, seccomp=True)


def offered(means: Means) -> Means:
    """These means, or the test is skipped where the machine has not all of them."""
    here = means_here()
    if any(getattr(means, name) and not getattr(here, name) for name in ("namespaces", "landlock", "seccomp")):
        pytest.skip(f"this machine offers only {here}")
    return means


def new_name() -> str:
    """A unique name for a process, of which the kernel keeps 15 characters."""
    return f"atk{uuid.uuid4().hex[:12]}"


def named(name: str) -> str:
    """Source that gives its process, and those that it forks, a name by which they can be found."""
    return f"import ctypes, os, time\nctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)\n"


def processes(name: str) -> list[int]:
    """Processes on this machine of that name, in whatever namespace."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == name:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_until(number: int, name: str, seconds: float = 20.0) -> bool:
    """Whether as many processes of that name, at least (0: exactly none), are there in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        count = len(processes(name))
        if count >= number > 0 or count == number == 0:
            return True
        time.sleep(LEAST)
    return False


def without_sandbox(source: str, seconds: float = 20.0) -> int:
    """Run source in a plain process; its exit code."""
    return subprocess.run(
        [sys.executable, "-c", source], timeout=seconds, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ).returncode
