"""A module of these tests in two processes, as a training on one host starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tasks.children.launchers import free_port

ROOT = Path(__file__).parents[4]


def results_of_pair(module: str, folder: Path) -> Any:
    """The contents of `results.json`, written by the first rank of `python -m module folder`."""
    subprocess.run(
        [sys.executable, "-m", "tasks.children.ranks", "2", str(free_port()), module, str(folder)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""},
        check=True,
        capture_output=True,
        timeout=300,
    )
    return json.loads((folder / "results.json").read_text())
