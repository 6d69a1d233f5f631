"""Checkpoints: read back before they count, named when damaged, as many as set. Snapshots, and space on the disk."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError, Divergence, StoreError, TrainingError
from tasks.pretrain import pretrain
from tasks.pretrain.checkpoints.disk import largest_checkpoint
from tasks.pretrain.checkpoints.manager import Checkpoints
from tasks.pretrain.checkpoints.saved_states import Finding, merge, problems, read_back
from tasks.pretrain.engines import Engine, MicroBatch, open_engine, states
from tasks.pretrain.engines.async_save import saves_async
from tasks.pretrain.engines.shard_layout import ShardLayout
from tasks.pretrain.engines.trained import trained_sizes
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World
from tasks.stage.output import Output
from tests.runtimes import runtime_of
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.planted_code import mark_again, plant_code
from tests.tasks.pretrain.tiny_training import MODEL, RUNTIME, make_spec

ROOT = Path(__file__).parents[4]
ENGINES = [
    {"engine": "ddp"},
    {"engine": "deepspeed", "zero_stage": 0},
    {"engine": "deepspeed", "zero_stage": 2},
    {"engine": "deepspeed", "zero_stage": 3},
]
MATRIX = "blocks.1.attention.output.weight"


def trained(spec: TrainSpec, world: World, steps: int = 1, **runtime: Any) -> Engine:
    engine = open_engine(spec.model_copy(update={"runtime": runtime_of(RUNTIME, **runtime)}), world)
    for step in range(steps):
        engine.step(batch(spec, step), 1e-2)
    return engine


def batch(spec: TrainSpec, step: int) -> list[MicroBatch]:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, spec.shape.vocab_size, (4, 33), generator=generator)
    return [(ids[:, :-1], ids[:, 1:], None)]


def weights(engine: Engine) -> dict[str, torch.Tensor]:
    model = engine.whole_model()
    assert model is not None
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("runtime", ENGINES, ids=str)
def test_what_was_saved_is_read_back_and_goes_on_bit_for_bit(
    runtime: dict[str, Any], spec: TrainSpec, world: World, tmp_path: Path
) -> None:
    engine = trained(spec, world, steps=2, **runtime)
    checkpoints = Checkpoints(tmp_path, "mine", world=world)
    checkpoints.save(engine, 2)
    engine.step(batch(spec, 2), 1e-2)
    assert checkpoints.latest() == 2
    resumed = trained(spec, world, steps=0, **runtime)
    checkpoints.load(resumed, 2)
    resumed.step(batch(spec, 2), 1e-2)
    assert_equal(weights(resumed), weights(engine))
    marker = json.loads((tmp_path / "step-000000002" / "complete.json").read_text())
    assert marker["samples"] == 8
    assert set(marker["files"]) == set(list_files(tmp_path / "step-000000002")) - {"complete.json"}


@pytest.mark.parametrize("runtime", ENGINES, ids=str)
def test_every_parameter_is_found_in_files_and_a_rank_may_look_at_a_part(
    runtime: dict[str, Any], spec: TrainSpec, world: World, tmp_path: Path
) -> None:
    engine = trained(spec, world, **runtime)
    engine.save(tmp_path / "one")
    expected = trained_sizes(spec.shape, spec.config, spec.base)
    parts = [read_back(tmp_path / "one", engine.layout, expected, rank=rank, ranks=3) for rank in range(3)]
    found = merge(parts)
    assert problems(found, expected) == []
    for name, value in weights(engine).items():
        if name in expected:
            assert found[name].squares == pytest.approx(float(value.square().sum()), rel=1e-4), name
            assert found[name].state_squares > 0, name


def two_checkpoints(spec: TrainSpec, world: World, folder: Path) -> Checkpoints:
    checkpoints = Checkpoints(folder, "mine", world=world)
    engine = trained(spec, world)
    checkpoints.save(engine, 1)
    checkpoints.save(engine, 2)
    return checkpoints


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def change(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = [(truncate, "bytes instead of"), (change, "has changed bytes"), (Path.unlink, "is missing")]


@pytest.mark.parametrize(("damage", "named"), DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    damage: Callable[[Path], None], named: str, spec: TrainSpec, world: World, tmp_path: Path
) -> None:
    two_checkpoints(spec, world, tmp_path)
    damage(tmp_path / "step-000000002" / "__0_0.distcp")
    told: list[str] = []
    checkpoints = Checkpoints(tmp_path, "mine", world=world, tell=told.append)
    assert checkpoints.latest() == 1
    assert named in told[0]
    assert "the checkpoint of step 2 is damaged (__0_0.distcp" in told[0]
    assert not (tmp_path / "step-000000002").exists()
    damage(tmp_path / "step-000000001" / "__0_0.distcp")
    with pytest.raises(TrainingError, match=f"{named}.*no earlier one is sound"):
        checkpoints.latest()


@pytest.mark.parametrize("other_stage", [False, True])
@pytest.mark.parametrize("runtime", ENGINES, ids=str)
def test_a_file_that_was_replaced_by_code_is_refused_and_does_not_run(
    runtime: dict[str, Any], other_stage: bool, spec: TrainSpec, world: World, tmp_path: Path
) -> None:
    """Refused whether the marker records other bytes or was forged to match."""
    checkpoints, ran = Checkpoints(tmp_path / "run", "mine", world=world), tmp_path / "ran"
    engine = trained(spec, world, **runtime)
    checkpoints.save(engine, 1)
    folder = tmp_path / "run" / "step-000000001"
    target = folder / ".metadata" if runtime["engine"] == "ddp" else next(folder.glob("*model_states.pt"))
    plant_code(target, ran)
    with pytest.raises(TrainingError, match=f"damaged .{target.name}"):
        Checkpoints(tmp_path / "run", "mine", world=world).load(engine, 1)
    with pytest.raises(TrainingError, match="damaged"):
        checkpoints.latest()
    mark_again(folder)
    if runtime["engine"] == "deepspeed":
        engine = trained(spec, world, 0, **{**runtime, "zero_stage": (runtime["zero_stage"] + other_stage) % 4})
    with pytest.raises(TrainingError, match="contains more than states, which was not loaded"):
        checkpoints.load(engine, checkpoints.latest())
    assert not ran.exists()


Layouts = dict[str, ShardLayout]


def zero(tensors: dict[str, torch.Tensor], layouts: Layouts) -> None:
    tensors[MATRIX] = torch.zeros_like(tensors[MATRIX])


def spoil(tensors: dict[str, torch.Tensor], layouts: Layouts) -> None:
    tensors[MATRIX] = torch.full_like(tensors[MATRIX], float("nan"))


def rename(tensors: dict[str, torch.Tensor], layouts: Layouts) -> None:
    tensors["another"], layouts["another"] = tensors.pop(MATRIX), layouts.pop(MATRIX)


def reshape(tensors: dict[str, torch.Tensor], layouts: Layouts) -> None:
    tensors[MATRIX] = tensors[MATRIX].flatten()
    layouts[MATRIX] = ShardLayout.whole(tensors[MATRIX])


def forget(tensors: dict[str, torch.Tensor], layouts: Layouts) -> None:
    for name in [name for name in tensors if name.startswith(f"{MATRIX}/")]:
        del tensors[name], layouts[name]


WRONG = [
    (zero, f"the matrix {MATRIX} is all zeros"),
    (spoil, f"the parameter {MATRIX} holds NaN"),
    (rename, f"the parameter {MATRIX} is missing"),
    (reshape, rf"the parameter {MATRIX} has the shape \(4096,\) instead of \(64, 64\)"),
    (forget, f"the optimizer states of {MATRIX} are missing"),
]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("wrong", "named"), WRONG)
def test_a_checkpoint_that_does_not_hold_the_model_never_counts(
    wrong: Callable[[dict[str, torch.Tensor], Layouts], None],
    named: str,
    asynchronous: bool,
    spec: TrainSpec,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = trained(spec, world)
    checkpoints = Checkpoints(tmp_path, "mine", world=world, asynchronous=asynchronous)
    checkpoints.save(engine, 1)
    sound = states._own_states

    def shared_out(*given: Any) -> Any:
        tensors, planner = sound(*given)
        planner.layouts = dict(planner.layouts)
        wrong(tensors, planner.layouts)
        return tensors, planner

    monkeypatch.setattr(states, "_own_states", shared_out)
    if asynchronous:
        checkpoints.save(engine, 2)
    with pytest.raises(TrainingError, match=named) as raised:
        checkpoints.finish() if asynchronous else checkpoints.save(engine, 2)
    # NaN is not the disk's fault: healing rolls back, as it does for a loss of NaN
    assert isinstance(raised.value, Divergence) == (wrong is spoil)
    assert not isinstance(raised.value, Divergence) or raised.value.facts["step"] == 2
    assert checkpoints.latest() == 1


@pytest.mark.parametrize("runtime", ENGINES[1:], ids=str)
def test_a_zeroed_matrix_is_found_in_deepspeeds_files_too(
    runtime: dict[str, Any], spec: TrainSpec, world: World, tmp_path: Path
) -> None:
    engine = trained(spec, world, **runtime)
    engine.save(tmp_path / "one")
    if runtime["zero_stage"] == 3:
        path = next((tmp_path / "one").glob("*optim_states.pt"))
        held = torch.load(path, weights_only=False)
        flat = held["optimizer_state_dict"]["fp32_flat_groups"][0].detach()
        flat[38400 : 38400 + 8192] = 0  # what follows the embedding of 600 × 64
        named = "blocks.0.attention.qkv.weight"
    else:
        path = next((tmp_path / "one").glob("*model_states.pt"))
        held = torch.load(path, weights_only=False)
        held["module"][MATRIX].zero_()
        named = MATRIX
    torch.save(held, path)
    expected = trained_sizes(spec.shape, spec.config, spec.base)
    found = read_back(tmp_path / "one", engine.layout, expected, rank=0, ranks=1)
    assert problems(found, expected) == [f"the matrix {named} is all zeros"]


def test_a_scale_may_be_zero_but_no_state_infinite() -> None:
    scale, matrix = Finding((4,), 0.0, True, 1.0), Finding((2, 2), 1.0, True, float("inf"))
    assert problems({"scale": scale, "matrix": matrix}, {"scale": (4,), "matrix": (2, 2)}) == [
        "the optimizer states of matrix hold NaN or infinity"
    ]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_as_many_are_kept_as_asked(asynchronous: bool, spec: TrainSpec, world: World, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "mine", world=world, keep=3, asynchronous=asynchronous)
    engine = trained(spec, world)
    for step in range(1, 6):
        checkpoints.save(engine, step)
    checkpoints.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-00000000{step}" for step in (3, 4, 5)]


def test_steps_do_not_change_what_is_being_written_behind(spec: TrainSpec, world: World, tmp_path: Path) -> None:
    engine = trained(spec, world)
    before = weights(engine)
    checkpoints = Checkpoints(tmp_path, "mine", world=world, asynchronous=True)
    checkpoints.save(engine, 1)
    for step in range(5):
        engine.step(batch(spec, step), 1e-1)
    checkpoints.finish()
    assert not torch.equal(weights(engine)[MATRIX], before[MATRIX])
    resumed = trained(spec, world, steps=0)
    checkpoints.load(resumed, 1)
    assert_equal(weights(resumed), before)


def test_another_engines_states_are_refused_and_another_version_is_told(
    spec: TrainSpec, world: World, tmp_path: Path
) -> None:
    told: list[str] = []
    checkpoints = Checkpoints(tmp_path, "mine", world=world, tell=told.append)
    checkpoints.save(trained(spec, world), 1)
    with pytest.raises(TrainingError, match=r"was made with runtime\.pretrain\.engine ddp or fsdp: .* refused"):
        checkpoints.load(trained(spec, world, 0, engine="deepspeed"), 1)
    path = tmp_path / "step-000000001" / "complete.json"
    marker = json.loads(path.read_text())
    marker["versions"]["torch"] = "1.0"
    path.write_text(json.dumps(marker))
    assert told == []
    checkpoints.load(trained(spec, world, 0), 1)
    assert told == [f"the checkpoint of step 1 was saved by torch 1.0, and this is {version('torch')}"]


@pytest.mark.soak_but("0.02")
@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_killed_while_a_checkpoint_is_written_the_one_before_stays(
    seconds: float, world: World, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.tasks.pretrain.checkpoints.kill_in_save", str(tmp_path), str(seconds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    folder = tmp_path / "scratch" / "checkpoints"
    torn = not (folder / "step-000000002" / "complete.json").exists()
    found = Checkpoints(folder, "mine", world=world).latest()
    assert found == (1 if torn else 2)
    if seconds == 0.0:
        assert torn, "the kill came too late to show anything"


def test_what_cant_write_behind_says_so(spec: TrainSpec, world: World) -> None:
    on, ds = {"async_checkpoints": "on"}, {"engine": "deepspeed"}
    assert saves_async(trained(spec, world, 0, **on))
    assert not saves_async(trained(spec, world, 0)), "auto is off on a CPU"
    with pytest.raises(ConfigError, match="async_checkpoints is on, but the engine deepspeed"):
        saves_async(trained(spec, world, 0, **on, **ds))


@pytest.mark.parametrize("runtime", ENGINES, ids=str)
def test_training_draws_nothing_so_no_generator_is_saved(
    runtime: dict[str, Any], spec: TrainSpec, world: World
) -> None:
    engine = trained(spec, world, **runtime)
    before = torch.get_rng_state()
    engine.step(batch(spec, 1), 1e-2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.soak_but("{'engine': 'ddp'}")
@pytest.mark.parametrize("runtime", ENGINES, ids=str)
def test_the_room_asked_for_is_what_a_checkpoint_takes(
    runtime: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, world: World, tmp_path: Path
) -> None:
    larger = make_spec(tmp_path_factory.mktemp("larger"), model={**MODEL, "width": 256})
    engine = trained(larger, world, **runtime)
    engine.save(tmp_path / "one")
    room = largest_checkpoint(engine.spec)
    taken = sum(path.stat().st_size for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert 0.95 * room < taken <= room


def test_a_run_that_does_not_fit_on_the_disk_is_refused_before_any_step(
    spec: TrainSpec, data: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    model = {**MODEL, "depth": 200, "width": 16384, "heads": 128, "kv_heads": 128}
    config = spec.config.model_copy(update={"model": spec.config.new_model.model_validate(model), "snapshot_every": 6})
    out = Output.at(tmp_path, stage="pretrain", runtime=RUNTIME)
    with pytest.raises(StoreError, match=r"needed \(3 checkpoints.*1 snapshots.*free") as caught:
        pretrain.function(config, *data, out)
    assert "runtime.training.keep_checkpoints" in caught.value.remedy
    assert not list(out.scratch.iterdir())


@pytest.mark.soak
def test_snapshots_and_checkpoints_written_behind_are_the_same_after_a_kill(
    spec: TrainSpec, data: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    config = spec.config.model_copy(update={"snapshot_every": 4})
    settings: dict[str, Any] = {"checkpoint_every": 3, "log_every": 1, "keep_checkpoints": 1, "processes": 2}
    whole = Output.at(tmp_path / "whole", stage="pretrain", runtime=runtime_of(RUNTIME, **settings))
    pretrain.function(config, *data, whole)
    settings |= {"async_checkpoints": "on"}
    killed = Output.at(tmp_path / "killed", stage="pretrain", runtime=runtime_of(RUNTIME, **settings))
    interrupt_and_resume(pretrain, config, data, killed, at=8)
    assert killed.facts["resumed_from_step"] in (3, 6)  # the one at step 6 may have been incomplete
    snapshots = killed.counts["tables"]["Snapshots"]
    assert [row["folder"] for row in snapshots] == ["snapshots/step-4", "snapshots/step-8"]
    a_step = killed.counts["tokens_seen"] // killed.counts["steps"]
    assert [row["tokens"] for row in snapshots] == [4 * a_step, 8 * a_step]
    assert tree_digest(list_files(killed.path)) == tree_digest(list_files(whole.path))
    assert killed.counts == whole.counts
    for step in (4, 8):
        assert (killed.path / f"snapshots/step-{step}/model.safetensors").is_file()
    assert not (killed.scratch / "checkpoints").exists()
