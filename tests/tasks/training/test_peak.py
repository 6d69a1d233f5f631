"""The peak memory of a process is its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_peak_of_a_process_is_not_that_of_the_one_that_started_it() -> None:
    large = bytearray(400_000_000)
    code = "from tasks.training.device_peak import peak_memory; print(peak_memory())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < len(large) / 2
