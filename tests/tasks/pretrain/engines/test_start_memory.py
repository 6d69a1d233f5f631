"""ZeRO 3 starts and ends in the memory that it trains in: no rank holds more than its share and a parameter."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from models.presets import count_parameters
from tests.tasks.pretrain.engines.engine_child import make_spec
from tests.tasks.pretrain.engines.start_memory import CHANGES

ROOT = Path(__file__).parents[4]


def test_no_rank_of_zero_3_holds_the_whole_model_when_it_starts_or_is_gathered(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)),
            *("-m", "tests.tasks.pretrain.engines.start_memory", str(tmp_path)),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""},
        check=True,
        capture_output=True,
        timeout=300,
    )
    first, second = json.loads((tmp_path / "results.json").read_text())
    shape = make_spec(tmp_path, {"shape": "mistral", "changes": CHANGES, "runtime": {}}).shape
    whole = 4 * count_parameters(shape)
    for rank in (first, second):
        assert whole / 2 <= rank["drawn"] < 0.6 * whole  # its half, and the parameter that is drawn
    assert second["gathered"] < 0.05 * whole
    assert first["gathered"] < 1.05 * whole  # in host memory, where the snapshot is written from
