"""The tests of tests/gpu, where there is no GPU: they are all there, and skipped for the one reason that there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_without_a_gpu_all_are_skipped_for_that() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", "tests/gpu"]
    environment = {name: value for name, value in os.environ.items() if name != "GRISTMILL_TEST_DEVICE"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    reasons = re.findall(r"^SKIPPED \[(\d+)\] .*: (.*)$", done.stdout, re.MULTILINE)
    assert {reason for _, reason in reasons} == {"there is no GPU"}
    assert sum(int(number) for number, _ in reasons) > 100
    assert re.search(r"^\d+ skipped", done.stdout, re.MULTILINE)
