"""The pre-flight: each check passes on a sound training and fails when what it checks is broken."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flows.estimates.arithmetic import pretraining_of
from models.transformer import FeedForward
from profiles.load import load as load_profile
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import OutOfMemory, TrainingError
from tasks.checks.check import Check
from tasks.pretrain import pretrain
from tasks.pretrain.checkpoints.disk import Room, rooms
from tasks.pretrain.engines import states
from tasks.pretrain.engines.ddp import DdpEngine
from tasks.pretrain.fim_tokens import read_fim_tokens
from tasks.pretrain.preflight import learning, machine, preflight, refuse_failed, reproducibility, should_run
from tasks.pretrain.preflight.__main__ import CHECKS
from tasks.pretrain.preflight.bench import Bench
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World
from tasks.stage.display.progress import Observer
from tasks.stage.output import Output
from tasks.training.recovery.fault_injection import VARIABLE
from tests.runtimes import runtime_of
from tests.tasks.pretrain.tiny_training import MODEL, RUNTIME, make_spec


def fresh(spec: TrainSpec, world: World, folder: Path, **config: Any) -> Bench:
    chosen = spec.config.model_copy(update=config)
    return Bench(spec.model_copy(update={"scratch": folder, "config": chosen}), world)


@pytest.mark.soak_but("{}")
@pytest.mark.parametrize(
    "config",
    [{}, {"isolate_documents": True, "context_warmup_steps": 4}, {"fim_rate": 0.5}, {"packing": "best_fit"}],
    ids=str,
)
def test_a_sound_training_passes_every_check(
    config: dict[str, Any], spec: TrainSpec, world: World, tmp_path: Path
) -> None:
    fim_tokens = read_fim_tokens(spec.tokenizer, spec.shape.vocab_size)
    bench = fresh(spec.model_copy(update={"fim_tokens": fim_tokens}), world, tmp_path, **config)
    found = [check(bench) for check in CHECKS]
    assert [check for check in found if check.state == "failed"] == []
    assert len({check.name for check in found}) == len(CHECKS)


@pytest.mark.parametrize("family", ["gpt2", "mistral", "qwen3", "qwen3_moe", "gemma3", "olmo3"])
def test_the_other_families_pass_too(
    family: str, world: World, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    model = {"family": family, "depth": 2, "width": 64, "heads": 4, "context": 32}
    bench = fresh(make_spec(tmp_path_factory.mktemp(family), model=model), world, tmp_path)
    for check in (learning.first_loss, learning.gradients, learning.causality, learning.overfit):
        assert check(bench).state == "passed", check(bench)


def test_nothing_is_compiled_that_only_a_whole_training_repays(spec: TrainSpec, world: World, tmp_path: Path) -> None:
    long = spec.model_copy(update={"steps": 10**9})
    assert fresh(long, world, tmp_path).engine.spec.runtime.pretrain.compile == "off"


def test_a_large_model_is_tried_with_fewer_layers(spec: TrainSpec, world: World, tmp_path: Path) -> None:
    large = make_spec(spec.scratch.parent, model={**MODEL, "depth": 64, "width": 512, "heads": 8, "kv_heads": 8})
    bench = fresh(large, world, tmp_path)
    assert 2 <= bench.small.shape.depth < 64
    assert bench.small.own_shape.width == 512
    assert bench.depth == f", {bench.small.shape.depth} of 64 layers"


def failed(check: Check, *named: str) -> None:
    assert check.state == "failed", check
    for part in named:
        assert part in check.value, check.value
    assert check.remedy


def test_initial_weights_of_the_wrong_scale_are_seen_in_the_first_loss(
    spec: TrainSpec, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.transformer.INIT_STD", 0.5)
    failed(learning.first_loss(fresh(spec, world, tmp_path)), "nats a token", "ln(600) = 6.397")


def test_a_branch_that_is_cut_off_is_named(
    spec: TrainSpec, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = FeedForward.forward
    monkeypatch.setattr(FeedForward, "forward", lambda self, x_BTC: sound(self, x_BTC).detach())
    failed(learning.gradients(fresh(spec, world, tmp_path)), "blocks.0.feed_forward.up.weight has none", "and")


def test_a_gradient_that_is_no_number_is_named(
    spec: TrainSpec, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = FeedForward.forward

    def rooted(self: FeedForward, x_BTC: Tensor) -> Tensor:
        return sound(self, x_BTC - x_BTC.detach() + 0.0).abs().sqrt()  # the root of 0 has no slope

    monkeypatch.setattr(FeedForward, "forward", rooted)
    failed(learning.gradients(fresh(spec, world, tmp_path)), "has nan")


def test_a_mask_that_lets_the_future_through_is_caught(
    spec: TrainSpec, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = F.scaled_dot_product_attention

    def all_seeing(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool, **options: Any) -> Tensor:
        return sound(query, key, value, is_causal=False, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", all_seeing)
    failed(learning.causality(fresh(spec, world, tmp_path)), "a later token changes an earlier logit")


def test_a_model_that_does_not_read_is_caught(
    spec: TrainSpec, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = fresh(spec, world, tmp_path)
    monkeypatch.setattr(type(bench.model), "_hidden", lambda self, ids_BT, _: (torch.ones(*ids_BT.shape, 64), None))
    failed(learning.causality(bench), "leaves all logits from there on unchanged")


@pytest.mark.soak_but("1e-07")
@pytest.mark.parametrize("rate", [1e-7, 10.0])
def test_a_rate_at_which_nothing_is_learned_fails_by_heart(
    rate: float, spec: TrainSpec, world: World, tmp_path: Path
) -> None:
    failed(learning.overfit(fresh(spec, world, tmp_path, learning_rate=rate)), "128 tokens: loss 6.", "200 steps")


def test_a_load_that_forgets_the_optimizer_is_caught(
    spec: TrainSpec, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(self: DdpEngine, folder: Path) -> None:
        states.load_states(folder, self.parameters, self.optimizer, self.scaler.state_dict())
        self.optimizer.state.clear()

    bench = fresh(spec, world, tmp_path)
    for _ in range(2):
        bench.engine.step(bench.batches, 1e-2)
    monkeypatch.setattr(DdpEngine, "load", forgetful)
    failed(reproducibility.checkpoint(bench), "a step after loading differs by")


def test_a_checkpoint_that_lost_a_parameter_is_caught(
    spec: TrainSpec, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = states._own_states

    def shared_out(*given: Any) -> Any:
        tensors, planner = sound(*given)
        del tensors["blocks.0.attention.qkv.weight"], planner.layouts["blocks.0.attention.qkv.weight"]
        return tensors, planner

    monkeypatch.setattr(states, "_own_states", shared_out)
    bench = fresh(spec, world, tmp_path)
    bench.engine.step(bench.batches, 1e-2)
    failed(reproducibility.checkpoint(bench), "the parameter blocks.0.attention.qkv.weight is missing")


def test_a_truncated_a_changed_and_a_foreign_shard_are_caught(spec: TrainSpec, tmp_path: Path) -> None:
    path = tmp_path / "00000.tokens"
    shutil.copy(spec.train[0], path)
    assert reproducibility.judge_shards([path], spec.tokenizer_digest).value.startswith("1 of 1")
    failed(reproducibility.judge_shards([path], "f" * 64), "00000.tokens was made with tokenizer")
    data = path.read_bytes()
    path.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    failed(reproducibility.judge_shards([path], spec.tokenizer_digest), "has changed bytes")
    path.write_bytes(data[:-10])
    failed(reproducibility.judge_shards([path], spec.tokenizer_digest), "bytes instead of")


def test_a_loader_with_another_order_is_caught(spec: TrainSpec, world: World, tmp_path: Path) -> None:
    one, other = (fresh(spec, world, tmp_path, seed=seed) for seed in (0, 1))
    loaders = one.open_loader(one.spec), other.open_loader(other.spec)
    failed(reproducibility.judge_loader(*loaders, (3, 4)), "step 3 is served differently")


def test_ranks_that_differ_or_see_the_same_are_caught() -> None:
    rank = {"data rank": 0, "loss": 6.4, "weights": "a", "samples": "x"}
    other = {**rank, "data rank": 1, "samples": "y"}
    assert reproducibility.judge_ranks([rank, other]).state == "passed"
    assert reproducibility.judge_ranks([rank, rank]).state == "passed", "two ranks of one copy see the same samples"
    failed(reproducibility.judge_ranks([rank, {**other, "weights": "b"}]), "don't agree on the weights")
    failed(reproducibility.judge_ranks([rank, {**other, "loss": 6.5}]), "don't agree on the loss")
    failed(reproducibility.judge_ranks([rank, {**other, "loss": float("nan")}]), "don't agree on the loss")
    near = reproducibility.judge_ranks([rank, {**other, "loss": 6.4001}])
    assert near.state == "passed", "GPUs of two kinds round differently"
    failed(reproducibility.judge_ranks([rank, {**other, "samples": "x"}]), "two ranks see the same samples")


@pytest.mark.parametrize("repeats", [True, False])
def test_a_resume_must_be_exact_as_far_as_kernels_repeat(repeats: bool) -> None:
    def judged(loaded: Tensor, stepped: Tensor) -> tuple[str, bool]:
        told = [torch.ones(2), torch.ones(2)]
        return reproducibility.judge_resume([before, loaded], [after, stepped], told, repeats=repeats)

    before = torch.linspace(-1, 1, 1000)
    after = before + 1e-3 * torch.sin(torch.arange(1000.0))
    assert judged(before, after) == ("saved, loaded and stepped: the same bits", True)
    assert not judged(before + 1e-7, after)[1], "weights that were not loaded as they are"
    rounded = after + 1e-5 * torch.cos(torch.arange(1000.0))
    assert judged(before, rounded)[1] != repeats
    forgotten = before + 1e-3 * torch.cos(torch.arange(1000.0))
    assert not judged(before, forgotten)[1], "the step of another optimizer state"


def test_what_does_not_fit_is_caught(spec: TrainSpec) -> None:
    host = (10, 100, "this machine")
    failed(machine.judge_memory([(99, 100, "a GPU"), host], 32), "of a GPU and", "with micro-batches of 32")
    assert machine.judge_memory([(90, 100, "a GPU"), host], 32).state == "passed"
    model = {**MODEL, "depth": 200, "width": 16384, "heads": 128, "kv_heads": 128}
    failed(machine.judge_disk(rooms(make_spec(spec.scratch.parent, model=model))), "needed (3 checkpoints")


def test_what_only_costs_time_is_advice() -> None:
    assert machine.judge_threads(2, 1, 2).state == "passed"
    crowded = machine.judge_threads(4, 2, 4)
    assert (crowded.state, crowded.value) == ("advice", "2 × 4 on 4 cores")
    assert "runtime.compute.threads=2" in crowded.remedy
    assert machine.judge_allocator({}).state == "advice"
    assert machine.judge_allocator({"LD_PRELOAD": "/lib/libtcmalloc.so.4"}).state == "passed"
    assert machine.judge_allocator(dict.fromkeys(machine.ALLOCATOR, "1")).state == "passed"


def test_auto_means_long_runs_that_begin_anew(spec: TrainSpec, tmp_path: Path) -> None:
    def of(steps: int, **runtime: Any) -> TrainSpec:
        return spec.model_copy(update={"steps": steps, "scratch": tmp_path, "runtime": runtime_of(**runtime)})

    lengths = {name: pretraining_of(load_profile(name)).steps for name in ("smoke", "tiny")}
    assert {name: should_run(of(steps or 0)) for name, steps in lengths.items()} == {"smoke": False, "tiny": True}
    assert should_run(of(1, preflight="always"))
    assert not should_run(of(2000, preflight="never"))
    (tmp_path / "checkpoints" / "step-000000100").mkdir(parents=True)
    assert should_run(of(2000)), "a torn checkpoint is none"
    (tmp_path / "checkpoints" / "step-000000100" / "complete.json").write_text("{}")
    assert not should_run(of(2000))


class Notes(Observer):
    """Keeps the lines that it got."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def noted(self, stage: str, message: str) -> None:
        self.notes.append(message)


def run(
    spec: TrainSpec, data: tuple[Artifact, Artifact], folder: Path, runtime: dict[str, Any], **config: Any
) -> Output:
    out = Output.at(folder, stage="pretrain", runtime=runtime_of(RUNTIME, **runtime))
    out.observer = Notes()
    pretrain.function(spec.config.model_copy(update=config), *data, out)
    return out


@pytest.mark.soak
def test_a_run_with_a_pre_flight_on_two_processes_has_the_result_of_one_without(
    spec: TrainSpec, data: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    without = run(spec, data, tmp_path / "without", {"processes": 2})
    with_it = run(spec, data, tmp_path / "with", {"processes": 2, "preflight": "always"})
    assert tree_digest(list_files(with_it.path)) == tree_digest(list_files(without.path))
    assert with_it.counts == without.counts
    lines = {line["name"]: line for line in with_it.facts["preflight"]}
    assert len(lines) == len(CHECKS)
    assert lines["ranks"]["value"] == "2 with equal weights, 2 different shares of the data"
    assert isinstance(with_it.observer, Notes)
    assert any(note.startswith(f"pre-flight: {len(CHECKS)} checks passed in") for note in with_it.observer.notes)
    assert not (with_it.scratch / "preflight").exists()


def test_a_run_that_can_learn_nothing_does_not_begin(
    spec: TrainSpec, data: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match=r"overfit one batch: 128 tokens: loss 6\.") as caught:
        run(spec, data, tmp_path, {"preflight": "always"}, learning_rate=1e-7)
    assert "pretrain.learning_rate" in caught.value.remedy
    assert "runtime.pretrain.preflight=never" in caught.value.remedy
    assert not (tmp_path / "scratch" / "log.jsonl").exists()


@pytest.mark.soak
def test_memory_that_runs_out_in_the_pre_flight_is_healed_as_in_training(
    spec: TrainSpec, data: tuple[Artifact, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "oom@0")
    out = run(spec, data, tmp_path, {"preflight": "always", "micro_batch": 4})
    (event,) = out.facts["events"]
    assert (event["kind"], event["action"]) == ("out of memory", "micro_batch 2 instead of 4")
    assert "in the pre-flight's check memory" in event["what"]
    assert len(out.facts["preflight"]) == len(CHECKS), "all passed with the smaller micro-batch"
    assert (out.facts["micro_batch"], out.facts["out_of_memory"]) == (2, 1)


def test_too_much_memory_alone_is_for_the_healer_and_other_failures_are_for_the_user() -> None:
    memory = machine.judge_memory([(99, 100, "a GPU")], 32).as_line()
    disk = machine.judge_disk([Room(Path("/"), 2, 1, "checkpoints")]).as_line()
    refuse_failed([machine.judge_memory([(9, 100, "a GPU")], 32).as_line()])
    with pytest.raises(OutOfMemory, match=r"too much memory: .* with micro-batches of 32"):
        refuse_failed([memory])
    with pytest.raises(TrainingError, match="Pre-flight checks failed") as caught:
        refuse_failed([disk, memory])
    assert not isinstance(caught.value, OutOfMemory)


@pytest.mark.soak
def test_memory_that_runs_out_on_one_of_several_ranks_ends_all(spec: TrainSpec, tmp_path: Path) -> None:
    """The others would wait for that rank for an hour."""
    vast = replace(spec.own_shape, depth=1, width=1 << 20, heads=1 << 13, kv_heads=1 << 13)
    runtime = runtime_of(RUNTIME, processes=2)
    larger = spec.model_copy(update={"shape": vast, "runtime": runtime, "scratch": tmp_path})
    with pytest.raises(OutOfMemory, match=r"Memory ran out in the pre-flight's check first_loss: .*can't allocate"):
        preflight(larger, Output.at(tmp_path, stage="pretrain", runtime=runtime))
