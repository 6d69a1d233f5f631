"""A training that is asked to end writes a checkpoint first, whatever its checkpoint interval."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.pretrain import PretrainConfig, pretrain
from tasks.stage.output import Output
from tests.runtimes import runtime_of
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.pretrain.tiny_training import MODEL, output
from tests.tasks.tiny_model import make_instructions, make_model

ROOT = Path(__file__).parents[3]
STEPS = 50
CONFIG = PretrainConfig.model_validate(
    {
        "model": MODEL,
        "steps": STEPS,
        "global_batch": 64,
        "warmup_steps": 2,
        "validation_every": STEPS,
        "sample_tokens": 4,
    }
)
SETTINGS: dict[str, Any] = {"checkpoint_every": 1000, "log_every": 1}


@pytest.mark.soak  # tests/pipeline/test_interrupt.py stops one process, from the command line
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("engine", ["ddp", "deepspeed"])
def test_a_stopped_training_goes_on_from_that_step_to_the_same_bytes(
    engine: str, processes: int, data: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    settings = {**SETTINGS, "engine": engine, "processes": processes}
    undisturbed = output(tmp_path / "undisturbed", **settings)
    pretrain.function(CONFIG, *data, undisturbed)
    stopped = output(tmp_path / "stopped", **settings)
    interrupt_and_resume(pretrain, CONFIG, data, stopped, at=10, grace=30.0)
    assert 10 <= stopped.facts["resumed_from_step"] < STEPS
    assert stopped.facts["restarts"] == 0
    assert tree_digest(list_files(stopped.path)) == tree_digest(list_files(undisturbed.path))


@pytest.mark.soak
@pytest.mark.parametrize("processes", [1, 2])
def test_a_stopped_fine_tuning_too(processes: int, tmp_path: Path) -> None:
    config = SftConfig(epochs=6, global_batch=16, learning_rate=5e-3)
    made = Artifact.at(make_model(tmp_path / "model")), Artifact.at(make_instructions(tmp_path / "pairs"))
    runtime = runtime_of(group="posttrain", threads=1, device="cpu", processes=processes, **SETTINGS)
    undisturbed, stopped = (
        Output.at(tmp_path / name, stage="sft", runtime=runtime) for name in ("undisturbed", "stopped")
    )
    sft.function(config, *made, undisturbed)
    interrupt_and_resume(sft, config, made, stopped, at=5, grace=30.0)
    assert stopped.facts["resumed_from_step"] >= 5
    assert tree_digest(list_files(stopped.path)) == tree_digest(list_files(undisturbed.path))


RANK = """
import sys, time
from pathlib import Path
from tasks.children.orderly_stop import OrderlyStop
stop = OrderlyStop(Path(sys.argv[1]), ranks=1, grace=60, reports=True)
while not stop.agreed():
    time.sleep(0.01)
"""


@pytest.mark.parametrize("asked", [True, False])
def test_a_signal_that_reaches_a_rank_alone_waits_for_the_stage_and_ends_it_if_none_asks(
    asked: bool, tmp_path: Path
) -> None:
    """As from Slurm, which signals every process of a job."""
    file = tmp_path / "stop"
    command = [sys.executable, "-c", RANK, str(file)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"stoppable" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        if asked:
            file.touch()
        assert process.wait(10) == (0 if asked else -signal.SIGTERM)
