"""Weights, gradients and optimizer states are those that DeepSpeed and FSDP really hold, in two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from models.memory import Setup, checkpoint_bytes, training_memory
from tasks.children.launchers import free_port

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_the_states_of_each_engine_and_stage_are_those_that_it_holds(
    precision: Literal["float32", "mixed"], tmp_path: Path
) -> None:
    from tests.models.engine_memory import SHAPE

    port = free_port()
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)),
            *("-m", "tests.models.engine_memory", precision, str(tmp_path)),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        check=True,
        capture_output=True,
        timeout=600,
    )
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results) == 6  # ZeRO 0 to 3, FSDP 0 and 3
    for name, measured in results.items():
        engine, stage = name.split()
        setup = Setup(engine=engine, zero_stage=int(stage), precision=precision, devices=2, cuda=False)
        told = training_memory(SHAPE, setup)
        states = told.weights + told.gradients + told.optimizer
        assert measured["held"] == pytest.approx(states, rel=0.02), name
        if "peak" in measured:
            assert measured["peak"] == pytest.approx(told.total, rel=0.05), name
        if "checkpoint" in measured:  # a file has a header for each tensor, which counts in a model this small
            assert measured["checkpoint"] == pytest.approx(checkpoint_bytes(SHAPE, setup), rel=0.05), name
