"""A run that heals itself: its decisions, and real runs with injected faults that still end with a model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.tokenizer import tokenizer_digest
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError, Divergence, LostProcess, OutOfMemory, TrainingError
from tasks.pretrain import PretrainConfig, pretrain
from tasks.pretrain.healing.divergence import SUSTAINED, DivergenceMonitor, changes
from tasks.pretrain.healing.policy import Decision, Healing, Situation, decide
from tasks.pretrain.healing.skipped_batches import BatchSchedule, report_of_steps
from tasks.pretrain.loader import MixtureLoader, open_loader
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.training.recovery.fault_injection import VARIABLE, parse_faults
from tasks.training.recovery.out_of_memory import is_out_of_memory, kills, true_fault
from tests.runtimes import runtime_of
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.pretrain import tiny_training as training
from tests.tasks.pretrain.tiny_training import MODEL, losses_of

ROOT = Path(__file__).parents[4]
CONFIG = PretrainConfig.model_validate(
    {
        "model": MODEL,
        "steps": 60,
        "global_batch": 8,
        "warmup_steps": 2,
        "validation_every": 60,
        "sample_tokens": 4,
        "healing": {"spike_window": 10, "skip_batches": 8},
    }
)
DEFAULT = PretrainConfig.model_validate({"model": MODEL})
HEALED = BatchSchedule(skipped=((33, 40),))  # after a divergence at step 40 under CONFIG
Floats = npt.NDArray[np.float64]

# --- the batch schedule ---------------------------------------------------------------------------------------------


@st.composite
def courses(draw: st.DrawFn) -> BatchSchedule:
    """Any schedule that healing can produce: ranges of steps left out, one after the other."""
    batch_schedule = BatchSchedule()
    for _ in range(draw(st.integers(0, 4))):
        first = draw(st.integers(1, 40))
        batch_schedule = batch_schedule.without(first, first + draw(st.integers(0, 10)))
    return batch_schedule


@given(courses())
def test_a_step_learns_the_first_batch_that_no_step_before_learned_and_that_is_not_left_out(
    batch_schedule: BatchSchedule,
) -> None:
    left_out = {number for first, last in batch_schedule.skipped for number in range(first, last + 1)}
    others = [number for number in range(1, 200) if number not in left_out]
    assert [batch_schedule.batch(step) for step in range(1, 101)] == others[:100]
    before = {number for first, last in batch_schedule.skipped_before(20) for number in range(first, last + 1)}
    assert before == {number for number in left_out if number < batch_schedule.batch(20)}


@given(courses(), st.integers(1, 40), st.integers(0, 10))
def test_what_is_left_out_later_changes_no_step_before(batch_schedule: BatchSchedule, first: int, more: int) -> None:
    learned = {batch_schedule.batch(step) for step in range(first, first + more + 1)}
    after = batch_schedule.without(first, first + more)
    assert [after.batch(step) for step in range(1, first)] == [batch_schedule.batch(step) for step in range(1, first)]
    assert not learned & {after.batch(step) for step in range(1, 200)}


def test_a_learning_rate_is_lowered_from_a_step_on_and_again_from_another() -> None:
    batch_schedule = BatchSchedule().slower(10, 0.5).slower(20, 0.5)
    assert [batch_schedule.rate_scale(step) for step in (9, 10, 19, 20)] == [1.0, 0.5, 0.5, 0.25]


# --- when a loss has diverged --------------------------------------------------------------------------------


def judge(losses: Sequence[float] | Floats, config: PretrainConfig = CONFIG) -> int | None:
    """The step at which the losses count as diverged, None for never."""
    monitor = DivergenceMonitor(config, BatchSchedule())
    try:
        for step, loss in enumerate(losses, 1):
            monitor.see({"step": step, "loss": float(loss), "gradient_norm": 1.0})
    except Divergence as error:
        return int(error.facts["step"])
    return None


def falling(steps: int, end: float) -> Floats:
    """A usual curve: fast, then slow."""
    return end + (9 - end) * np.exp(-np.arange(steps) / 60)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.1, 0.5]), st.sampled_from([0.02, 2.0, 6.0]))
def test_the_noise_of_small_batches_is_no_spike(seed: int, noise: float, end: float) -> None:
    random = np.random.default_rng(seed)
    heavy = random.standard_t(4, 2000)  # batches of unusual texts
    assert judge(falling(2000, end) + noise * heavy, DEFAULT) is None
    drifting = np.cumsum(random.normal(0, noise / 10, 2000))  # texts in long stretches of a kind
    assert judge(falling(2000, end) + noise * random.normal(0, 1, 2000) + drifting, DEFAULT) is None


@given(st.integers(0, 1000), st.integers(90, 150), st.sampled_from([0.02, 0.3]))
def test_a_loss_that_rises_and_stays_up_is_one_at_its_first_step(seed: int, step: int, noise: float) -> None:
    losses = 3 + noise * np.random.default_rng(seed).normal(0, 1, 200)
    odd = losses.copy()
    odd[step - 1 : step - 1 + SUSTAINED - 1] += 30  # odd batches, and back at once
    assert judge(odd, DEFAULT) is None
    losses[step - 1 :] += 20 * max(noise, 0.05)
    assert judge(losses, DEFAULT) == step


def test_an_odd_batch_hides_no_spike_that_comes_after_it() -> None:
    losses = [3.0, 3.1] * 10 + [8.0, 3.0] + [3.0, 3.1] * 5 + [9.0] * SUSTAINED
    assert judge(losses) == 33


def test_nothing_is_judged_where_the_losses_before_say_nothing_of_the_next() -> None:
    curriculum = {"mixture": {"a": 1}, "curriculum": [{"from_step": 41, "mixture": {"b": 1}}], "warmup_steps": 20}
    config = PretrainConfig.model_validate({**CONFIG.model_dump(), **curriculum})
    losses = [2.0] * 20 + [5.0] * 20 + [9.0] * 20  # after the warmup, and with other texts
    assert judge(losses, config) is None
    assert judge(losses) == 21
    assert changes(config, BatchSchedule(skipped=((30, 34),))) == {
        21,
        36,
    }  # texts change with the batches, not the steps
    grows = {"context_warmup_steps": 12, "context_warmup_parts": 8}
    assert changes(PretrainConfig.model_validate({**CONFIG.model_dump(), **grows}), BatchSchedule()) == {3, 5, 9, 13}


def test_switched_off_only_what_is_no_number_is_seen() -> None:
    off = PretrainConfig.model_validate({**CONFIG.model_dump(), "healing": {"enabled": False}})
    assert judge([2.0] * 30 + [50.0] * 30, off) is None
    assert judge([2.0] * 30 + [float("inf")], off) == 31


# --- what is decided ------------------------------------------------------------------------------------------------


def situation(**changes: Any) -> Situation:
    known: dict[str, Any] = {
        "config": CONFIG.healing,
        "samples": CONFIG.samples,
        "runtime": Runtime(),
        "checkpoints": [20, 30],
        **changes,
    }
    return Situation(**known)


def diverged(step: int) -> Divergence:
    rows = [{"step": step, "loss": float("nan"), "learning_rate": 1e-3, "gradient_norm": 2.5}]
    return Divergence(f"Step {step}: loss is nan.", step=step, rows=rows)


def test_the_first_divergence_leaves_batches_out_the_second_slows_down_the_third_ends() -> None:
    first = decide(Healing(), diverged(40), situation())
    assert (first.checkpoint, first.healing.batch_schedule) == (30, BatchSchedule(skipped=((33, 40),)))
    second = decide(first.healing, diverged(42), situation())
    assert second.checkpoint == 20
    assert second.healing.batch_schedule == BatchSchedule(skipped=((27, 50),), lowered=((27, 0.5),))
    third = decide(second.healing, diverged(45), situation())
    with pytest.raises(TrainingError, match="third divergence in a row") as caught:
        raise_(third)
    for said in ("40 and 42", "batches 27 to 50", "samples 208 to 399", "0.001", "2.5"):
        assert said in caught.value.message
    assert "pretrain.learning_rate" in caught.value.remedy
    again = decide(third.healing, diverged(45), situation())
    assert again.error is not None  # a rerun of the same profile has nothing left to try
    assert third.healing.events[-1].rows[0]["loss"] == "nan"


@given(st.integers(30, 500), st.integers(8, 60), st.integers(8, 60))
def test_what_is_left_out_does_not_depend_on_where_the_checkpoints_lie(step: int, every: int, other: int) -> None:
    decided = [
        decide(Healing(), diverged(step), situation(checkpoints=kept))
        for kept in ([*range(apart, step, apart)][-2:] for apart in (every, other))
        if len(kept) != 1
    ]
    assert len({decision.healing.batch_schedule for decision in decided}) <= 1
    for decision in decided:
        ((first, last),) = decision.healing.batch_schedule.skipped
        assert (last - first + 1, last) == (8, step)
        assert decision.checkpoint < first


def raise_(decision: Decision) -> None:
    assert decision.error is not None
    raise decision.error


def test_switched_off_a_divergence_ends_the_run_at_once() -> None:
    off = situation(config=CONFIG.healing.model_copy(update={"enabled": False}))
    decision = decide(Healing(), diverged(40), off)
    assert str(decision.error).startswith("Step 40: loss is nan.")
    assert not decision.healing.batch_schedule.skipped


def test_divergences_far_from_each_other_are_each_the_first() -> None:
    healing = Healing()
    for step in (1000, 1300, 1600, 1900):
        decision = decide(healing, diverged(step), situation(checkpoints=[step - 50]))
        healing = decision.healing
        assert decision.error is None
    assert len(healing.batch_schedule.skipped) == 4
    assert not healing.batch_schedule.lowered


def test_where_no_checkpoint_is_old_enough_fewer_batches_are_left_out() -> None:
    for checkpoints, goes_back, first in (([30, 33], 30, 31), ([33], 33, 34), ([], 0, 27)):
        decision = decide(Healing(), diverged(34), situation(checkpoints=checkpoints))
        assert (decision.checkpoint, decision.healing.batch_schedule.skipped) == (goes_back, ((first, 34),))
    assert decide(Healing(), diverged(3), situation(checkpoints=[])).healing.batch_schedule.skipped == ((1, 3),)


def test_memory_is_saved_step_by_step_and_the_global_batch_stays() -> None:
    healing, tried = Healing(), []
    asked = runtime_of(processes=2)
    for _ in range(20):
        runtime = healing.runtime(asked)
        micro_batch = runtime.pretrain.micro_batch or 12
        now = situation(runtime=asked, ranks=2, checkpoints=[], share=24, micro_batch=micro_batch)
        decision = decide(healing, OutOfMemory("Full."), now)
        if decision.error is not None:
            break
        healing = decision.healing
        tried.append(healing.events[-1].action)
    assert tried == [
        "micro_batch 6 instead of 12",
        "micro_batch 3 instead of 6",
        "micro_batch 1 instead of 3",
        "recompute selective instead of none",
        "recompute full instead of selective",
        "zero_stage 1 instead of 0",
        "zero_stage 2 instead of 1",
        "zero_stage 3 instead of 2",
    ]
    assert "runtime.training.processes" in str(decision.error)
    assert healing.runtime(asked).pretrain.recompute == "full"
    otherwise = runtime_of(asked, micro_batch=2)
    assert healing.runtime(otherwise) == otherwise  # changed settings are followed


@pytest.mark.parametrize(("engine", "stage"), [("deepspeed", 1), ("fsdp", 3)])
def test_a_model_that_does_not_fit_is_sharded_at_once_among_several_processes(engine: str, stage: int) -> None:
    runtime = runtime_of(engine=engine)
    for checkpoints in ([], [20]):
        now = situation(ranks=2, checkpoints=checkpoints, runtime=runtime)
        fits_not = decide(Healing(), OutOfMemory("Full."), now)
        assert fits_not.healing.events[-1].action == f"zero_stage {stage} instead of 0"
    assert decide(Healing(), OutOfMemory("Full."), situation(ranks=1, checkpoints=[], runtime=runtime)).error


def test_restarts_are_counted_anew_from_a_later_checkpoint_and_after_a_stop() -> None:
    healing = Healing()
    for checkpoints, goes_on in (([20], True), ([20], True), ([20, 30], True), ([30], True), ([30], False)):
        decision = decide(healing, LostProcess("Dead."), situation(checkpoints=checkpoints))
        assert (decision.error is None) == goes_on
        healing = decision.healing
    assert "Restarted 2 times" in str(decision.error)
    assert decide(healing, LostProcess("Dead."), situation(checkpoints=[30])).error is None  # a new run of the stage
    none = situation(runtime=runtime_of(restarts=0))
    assert str(decide(Healing(), LostProcess("Dead."), none).error) == "Dead."


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    healing = decide(Healing(), diverged(40), situation()).healing
    healing.write(tmp_path / "healing.json")
    assert Healing.read(tmp_path / "healing.json") == healing
    assert [path.name for path in tmp_path.iterdir()] == ["healing.json"]


# --- faults, and how they show --------------------------------------------------------------------------------------


def test_memory_that_ran_out_is_told_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert is_out_of_memory(MemoryError())
    wrapped = RuntimeError("DeepSpeed: the backward pass failed")
    wrapped.__cause__ = torch.OutOfMemoryError()
    assert is_out_of_memory(wrapped)
    assert not is_out_of_memory(RuntimeError("Connection closed by peer"))


@pytest.mark.parametrize(
    ("path", "groups"),
    [("unit/memory.events", "0::/unit"), ("memory/job/memory.oom_control", "4:memory:/job\n0::/")],
    ids=["version 2", "version 1"],
)
def test_what_the_kernel_killed_for_want_of_memory_is_counted(path: str, groups: str, tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(groups + "\n")
    assert kills(proc, cgroups) == 0  # nothing can be read
    (proc / "vmstat").write_text("pgfault 7\noom_kill 5\n")
    assert kills(proc, cgroups) == 5
    (cgroups / path).parent.mkdir(parents=True)
    (cgroups / path).write_text("low 0\noom_kill 3\n")
    assert kills(proc, cgroups) == 3


def test_a_process_that_the_kernel_killed_for_want_of_memory_is_told_from_one_that_died() -> None:
    killed = LostProcess("Killed by SIGKILL.", how="was killed by SIGKILL", exit_code=-9)
    assert isinstance(true_fault(killed, 1), OutOfMemory)
    assert true_fault(killed, 1).facts == killed.facts
    assert true_fault(killed, 0) is killed
    hung = LostProcess("No sign of life.", how="hung")
    assert true_fault(hung, 1) is hung  # another process was killed


def test_faults_are_read_and_nonsense_is_refused() -> None:
    faults = parse_faults("nan@40, kill:1@30,spike@5!")
    assert [(fault.kind, fault.rank, fault.step, fault.always) for fault in faults] == [
        ("nan", 0, 40, False),
        ("kill", 1, 30, False),
        ("spike", 0, 5, True),
    ]
    with pytest.raises(ConfigError, match="'fire@3'"):
        parse_faults("nan@40,fire@3")


# --- real runs ------------------------------------------------------------------------------------------------------


def output(folder: Path, **runtime: Any) -> Output:
    return training.output(folder, checkpoint_every=5, engine="ddp", **runtime)


@pytest.fixture(scope="module")
def on_course(data: tuple[Artifact, Artifact], tmp_path_factory: pytest.TempPathFactory) -> Output:
    """An undisturbed run, with the batches left out from the beginning."""
    out = output(tmp_path_factory.mktemp("on_course"))
    Healing(batch_schedule=HEALED).write(out.scratch / "healing.json")
    pretrain.function(CONFIG, *data, out)
    return out


def test_the_loader_passes_over_what_is_left_out_whatever_the_ranks(data: tuple[Artifact, Artifact]) -> None:
    digest = tokenizer_digest(data[1].path)
    loader = open_loader(data[0].files("train/*.tokens"), CONFIG, context=32, tokenizer_digest=digest)

    def served(step: int, ranks: int, size: int, number: int | None) -> Iterator[list[int]]:
        parts = [loader.micro_batches(step, rank=r, ranks=ranks, size=size, number=number) for r in range(ranks)]
        for batch in (part[micro] for micro in range(len(parts[0])) for part in parts):
            yield from batch.ids.tolist()

    whole = [list(served(step, 1, 8, None)) for step in range(1, 61)]
    for step, number in ((32, 32), (33, 41), (52, 60)):
        assert HEALED.batch(step) == number
        assert list(served(step, 2, 2, HEALED.batch(step))) == whole[number - 1]


def test_the_report_by_source_counts_what_was_learned_alone(data: tuple[Artifact, Artifact]) -> None:
    mixed = PretrainConfig.model_validate({**CONFIG.model_dump(), "mixture": {"even": 1, "odd": 3}})
    digest = tokenizer_digest(data[1].path)
    loader = open_loader(data[0].files("train/*.tokens"), mixed, context=32, tokenizer_digest=digest)
    assert isinstance(loader.samples, MixtureLoader)
    batch_schedule = HEALED.without(3, 4)
    counted = np.zeros(2, int)
    for step in range(1, 61):
        sources, _ = loader.samples.order.places((batch_schedule.batch(step) - 1) * 8, 8)
        counted += np.bincount(sources, minlength=2)
    rows = report_of_steps(loader.samples.report, batch_schedule, 60, mixed.samples)
    assert {row["source"]: row["served"] for row in rows} == {"even": counted[0], "odd": counted[1]}
    assert [row["epochs"] for row in rows] == [round(row["served"] / row["windows"], 4) for row in rows]


STAGE_THAT_DIES = """
import os, signal, sys
from pathlib import Path
from storage.artifact import Artifact
from tasks.pretrain import pretrain
from tasks.stage.display.progress import Observer
from tests.tasks.pretrain.healing.test_healing import CONFIG, output

class Dies(Observer):
    def noted(self, stage, message):
        if "divergence" in message or "nan" in message.lower():
            os.kill(os.getpid(), signal.SIGKILL)

out = output(Path(sys.argv[1]))
out.observer = Dies()
pretrain.function(CONFIG, Artifact.at(Path(sys.argv[2])), Artifact.at(Path(sys.argv[3])), out)
"""


@pytest.mark.soak
def test_a_nan_is_healed_though_the_stage_is_killed_while_it_decides_and_again_later(
    on_course: Output, data: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    folders = [str(tmp_path), *(str(artifact.path) for artifact in data)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: "nan@40"}
    died = subprocess.run([sys.executable, "-c", STAGE_THAT_DIES, *folders], env=environment, cwd=tmp_path)
    assert died.returncode == -signal.SIGKILL
    out = output(tmp_path)
    assert Healing.read(out.scratch / "healing.json").batch_schedule == HEALED
    interrupt_and_resume(pretrain, CONFIG, data, out, at=52)
    assert out.facts["resumed_from_step"] == 50
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(on_course.path))
    assert (out.counts["rollbacks"], out.counts["skipped_batches"]) == (1, 8)
    (event,) = out.facts["events"]
    assert (event["kind"], event["step"], event["checkpoint"], event["exit_code"]) == ("divergence", 40, 30, 1)
    assert event["rows"][-1]["loss"] == "nan"
    (row,) = out.counts["tables"]["Events"]
    assert row["remedy"] == "skipped batches 33 to 40 (samples 256 to 319)"


@pytest.mark.soak
def test_memory_that_runs_out_a_hang_a_killed_rank_and_a_nan_are_all_healed_in_one_run(
    on_course: Output, data: tuple[Artifact, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "oom:1@5,hang:1@20,kill:1@30,nan@40")
    out = output(tmp_path, processes=2, hang_minutes=0.15)
    pretrain.function(CONFIG, *data, out)
    events = out.facts["events"]
    assert [(event["kind"], event["checkpoint"]) for event in events] == [
        ("out of memory", 0),
        ("lost process", 15),
        ("lost process", 25),
        ("divergence", 30),
    ]
    assert events[0]["action"] == "micro_batch 2 instead of 4"
    assert "can't allocate memory" in events[0]["what"]
    assert "no sign of life" in events[1]["what"]
    assert "in _strike" in (out.scratch / "child.log").read_text()  # the stack of the hanging rank
    assert any("-9" in line or "SIGKILL" in line for line in (events[2]["what"], *events[2]["last_lines"]))
    assert [row["event"] for row in out.counts["tables"]["Events"]] == [event["kind"] for event in events]
    assert {name: out.facts[name] for name in ("restarts", "out_of_memory", "micro_batch", "processes")} == {
        "restarts": 2,
        "out_of_memory": 1,
        "micro_batch": 2,
        "processes": 2,
    }
    assert on_course.facts["skipped"] == [(33, 40)]
    assert losses_of(out) == pytest.approx(losses_of(on_course), abs=2e-3)  # sums in another order, over 60 steps


@pytest.mark.soak
def test_a_third_divergence_ends_the_run_with_a_diagnosis(
    data: tuple[Artifact, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "spike@30!")
    out = output(tmp_path)
    with pytest.raises(Divergence, match=r"third divergence in a row.*last losses were") as caught:
        pretrain.function(CONFIG, *data, out)
    healing = Healing.read(out.scratch / "healing.json")
    assert [event.stopped for event in healing.events] == [False, False, True]
    assert {event.step for event in healing.events} == {31}  # the loss shows it a step later
    assert healing.batch_schedule.lowered[0][1] == 0.5
    assert "the loss rose to" in caught.value.message
