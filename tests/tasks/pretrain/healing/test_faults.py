"""Faults beyond the policy, or at an edge of it: a full disk, a torn log, hosts whose lines others forward."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from traceback import StackSummary
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from storage.artifact import Artifact
from storage.errors import OutOfMemory, StoreError
from storage.files.disk import disk_full
from tasks.children.launchers import free_port
from tasks.pretrain import pretrain
from tasks.pretrain.config import HealingConfig
from tasks.pretrain.healing.policy import Healing, Situation, decide
from tasks.pretrain.spec import TrainSpec
from tasks.stage.display.progress import Observer, Progress
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.training.logs import read_log
from tasks.training.recovery.fault_injection import VARIABLE
from tests.runtimes import runtime_of
from tests.tasks.interrupt import interrupt
from tests.tasks.pretrain.tiny_training import make_spec
from tests.tasks.tiny_model import make_tokenizer

ROOT = Path(__file__).parents[4]
MODULE = "tasks.pretrain.train"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> TrainSpec:
    return make_spec(tmp_path_factory.mktemp("training"))


def inputs(spec: TrainSpec) -> tuple[Artifact, Artifact]:
    tokens = spec.train[0].parent.parent
    return Artifact.at(tokens), Artifact.at(make_tokenizer(tokens.parent / "tokenizer"))


def output(folder: Path, **runtime: Any) -> Output:
    chosen = {"threads": 1, "device": "cpu", "checkpoint_every": 3, "log_every": 1, "engine": "ddp", **runtime}
    return Output.at(folder, stage="pretrain", runtime=runtime_of(**chosen))


def test_a_full_disk_is_known_however_it_is_wrapped() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    wrapped = RuntimeError("a library's own words")
    wrapped.__cause__ = full
    gathered = CheckpointException("ranks: 1", {1: (wrapped, StackSummary())})
    assert disk_full(full) is disk_full(wrapped) is disk_full(gathered) is full
    assert disk_full(OSError(errno.EIO, "Input/output error")) is None
    with pytest.raises(RuntimeError) as caught:
        torch.save(torch.zeros(1 << 20), "/dev/full")
    assert disk_full(caught.value) is not None


@pytest.mark.soak
@pytest.mark.parametrize(
    "runtime",
    [pytest.param({"async_checkpoints": "on"}, marks=pytest.mark.soak), {"engine": "deepspeed", "zero_stage": 1}],
    ids=str,
)
def test_a_disk_that_fills_up_ends_the_run_at_once_and_a_rerun_goes_on(
    runtime: dict[str, Any], spec: TrainSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "full@8")
    out = output(tmp_path, **runtime)
    with pytest.raises(StoreError, match=r"limit of 0\.1 MB") as caught:
        pretrain.function(spec.config, *inputs(spec), out)
    assert "checkpoints are kept" in caught.value.remedy
    assert not (out.scratch / "healing.json").exists(), "it was begun again, which helps nobody"
    pretrain.function(spec.config, *inputs(spec), out)
    assert out.facts["resumed_from_step"] in (3, 6)  # the one of step 6 may have been incomplete
    assert "events" not in out.facts


@pytest.mark.soak
def test_rows_that_a_kill_tore_are_taken_again(spec: TrainSpec, tmp_path: Path) -> None:
    out = output(tmp_path, insight_every=4)
    interrupt(pretrain, spec.config, inputs(spec), out, at=8)
    logs = [out.scratch / "log.jsonl", *(out.aside / f"{name}.jsonl" for name in ("speed", "insight"))]
    for path in logs:
        with path.open("a") as file:
            file.write('{"step": 9, "lo')
    pretrain.function(spec.config, *inputs(spec), out)
    assert out.facts["resumed_from_step"] == 6
    for path in (out.path / "log.jsonl", *logs[1:]):
        assert json.loads(path.read_text().splitlines()[-1])["step"] == 12, path
        assert '"lo{' not in path.read_text()


@pytest.mark.soak
def test_a_damaged_checkpoint_is_an_event_of_the_run(spec: TrainSpec, tmp_path: Path) -> None:
    out = output(tmp_path)
    interrupt(pretrain, spec.config, inputs(spec), out, at=8)
    file = next((out.scratch / "checkpoints" / "step-000000006").glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-1])
    pretrain.function(spec.config, *inputs(spec), out)
    (event,) = out.facts["events"]
    assert (event["kind"], event["step"], event["checkpoint"]) == ("damaged checkpoint", 6, 3)
    assert event["what"].startswith(f"{file.name} has ")
    assert out.counts["tables"]["Events"][0]["remedy"] == "dropped"
    assert out.facts["resumed_from_step"] == 3


def tried(runtime: Runtime, **known: Any) -> list[str]:
    """The decisions about memory that runs out again and again, to the end."""
    healing = Healing()
    actions: list[str] = []
    now = Situation(HealingConfig(), samples=lambda steps: steps, runtime=runtime, checkpoints=[20], ranks=2, **known)
    while True:
        decision = decide(healing, OutOfMemory("Full."), now)
        if decision.error is not None:
            assert "runtime.pretrain.engine fsdp" in decision.error.remedy
            return actions
        healing = decision.healing
        actions.append(healing.events[-1].action)
        now = replace(now, micro_batch=healing.runtime(runtime).pretrain.micro_batch or now.micro_batch)


def test_ddp_that_does_not_fit_becomes_fsdp_where_that_can_train_the_same() -> None:
    runtime = runtime_of(engine="ddp", processes=2, recompute="full")
    assert tried(runtime, micro_batch=2, share=2) == [
        "micro_batch 1 instead of 2",
        "engine fsdp instead of ddp",
        "zero_stage 3 instead of 0",
    ]
    assert tried(runtime, micro_batch=0)[0] == "engine fsdp instead of ddp"
    assert tried(runtime, micro_batch=1, shardable=False) == []
    whole = runtime_of(engine="deepspeed", processes=2, recompute="full")
    assert tried(whole, micro_batch=1)[0] == "zero_stage 1 instead of 0"
    assert tried(whole, micro_batch=1, shardable=False) == [], "Muon's states are whole"
    half = runtime_of(whole, zero_stage=1)
    assert tried(half, micro_batch=1, shardable=False)[0] == "zero_stage 2 instead of 1", "float16 is not whole"
    assert tried(runtime_of(runtime, pipeline_parallel=2), micro_batch=1) == []


@pytest.mark.soak
def test_fsdp_goes_on_from_the_checkpoint_of_a_ddp_that_did_not_fit(
    spec: TrainSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = {"processes": 2, "micro_batch": 1, "recompute": "full"}
    undisturbed = output(tmp_path / "undisturbed", **runtime)
    pretrain.function(spec.config, *inputs(spec), undisturbed)
    monkeypatch.setenv(VARIABLE, "oom:1@5")
    out = output(tmp_path / "healed", **runtime)
    pretrain.function(spec.config, *inputs(spec), out)
    assert [(event["action"], event["checkpoint"]) for event in out.facts["events"]] == [
        ("engine fsdp instead of ddp", 3)
    ]
    expected, found = ([row["loss"] for row in read_log(one.path / "log.jsonl")] for one in (undisturbed, out))
    assert found == pytest.approx(expected, abs=2e-4)


class Heard(Observer):
    """Keeps the steps that were reported to it."""

    def __init__(self) -> None:
        self.steps: list[float] = []

    def progressed(self, progress: Progress) -> None:
        self.steps.append(progress.done)


@pytest.mark.soak
def test_hosts_that_met_meet_again_after_one_died_and_the_stage_hears_of_it_all(
    spec: TrainSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    out = output(tmp_path, rendezvous=f"127.0.0.1:{port}", hosts=2)
    out.observer = heard = Heard()
    monkeypatch.setenv(VARIABLE, "kill:1@5")
    command = [sys.executable, "-m", "tasks.children.join", str(tmp_path.parent)]
    with (tmp_path / "other.log").open("w") as log:
        other = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            pretrain.function(spec.config, *inputs(spec), out)
        finally:
            other.kill()
            other.wait()
    assert (tmp_path / "other.log").read_text().count(f"joining {tmp_path.name}") == 2
    assert {"restarts": out.facts["restarts"], "processes": out.facts["processes"]} == {"restarts": 1, "processes": 2}
    assert out.facts["resumed_from_step"] == 3
    assert set(range(13)) <= set(heard.steps)
