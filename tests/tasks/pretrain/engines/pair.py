"""A module of these tests in two processes, as torchrun starts them."""

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
    """What the first rank of `python -m module folder` wrote into `results.json`."""
    port = free_port()
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)),
            *("-m", module, str(folder)),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""},
        check=True,
        capture_output=True,
        timeout=300,
    )
    return json.loads((folder / "results.json").read_text())
