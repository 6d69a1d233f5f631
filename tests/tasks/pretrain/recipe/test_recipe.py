"""The recipe at work: micro-batches that add up, float16 with its scale, and whole runs of all of it together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from models.convert import load
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError, TrainingError
from tasks.pretrain import PretrainConfig, pretrain
from tasks.pretrain.engines.ddp import DdpEngine
from tasks.pretrain.healing.divergence import DivergenceMonitor
from tasks.pretrain.healing.skipped_batches import BatchSchedule
from tasks.pretrain.log import Log
from tasks.pretrain.recipe.micro_batch import rank_share
from tasks.pretrain.recipe.precision import precision
from tasks.training.logs import read_log
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.pretrain.one_process import (
    ALONE,
    micro_batches,
    one_process,
    open_ddp,
    rows,
    spec_of,
    train,
    weights_of,
)
from tests.tasks.pretrain.tiny_training import CONFIG, losses_of, output

__all__ = ["one_process"]  # the fixture

GROWING = {"batch_warmup_steps": 6, "batch_warmup_parts": 4, "z_loss": 1e-3, "isolate_documents": True}
ALL = PretrainConfig.model_validate(
    {
        **CONFIG.model_dump(),
        **GROWING,
        "optimizer": "muon",
        "precision": "float16",
        "schedule": "wsd",
        "mup_base_width": 32,
    }
)


def test_gradients_are_clipped_to_the_limit_and_smaller_ones_left_as_they_are() -> None:
    for limit in (1e-3, 1e3):
        engine = open_ddp(gradient_clip=limit)
        engine.backward(micro_batches(rows(1), 8))
        before = norm_of(engine)
        assert float(engine.clip()) == pytest.approx(before, rel=1e-5)
        assert norm_of(engine) == pytest.approx(min(before, limit), rel=1e-2)


def norm_of(engine: DdpEngine) -> float:
    """The length of all gradients together."""
    gradients = [parameter.grad for parameter in engine.model.parameters() if parameter.grad is not None]
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))


@pytest.mark.parametrize("isolated", [False, True], ids=["packed", "isolated"])
@pytest.mark.parametrize("choices", [{}, {"z_loss": 0.01}, {"optimizer": "muon"}], ids=str)
def test_eight_rows_at_once_teach_what_one_row_eight_times_teaches(isolated: bool, choices: dict[str, Any]) -> None:
    whole, one_by_one = open_ddp(**choices), open_ddp(micro_batch=1, **choices)
    expected = train(whole, range(1, 6), isolated=isolated)
    assert train(one_by_one, range(1, 6), micro=1, isolated=isolated) == pytest.approx(
        expected, abs=2e-4 if "optimizer" in choices else 2e-5
    )
    difference = (weights_of(one_by_one) - weights_of(whole)).abs().max()
    assert difference < 1e-4


def test_the_loss_of_uneven_rows_is_the_mean_over_their_tokens() -> None:
    batch = rows(1, isolated=True)
    counts = [int((targets >= 0).sum()) for _, targets, _ in micro_batches(batch, 1)]
    assert min(counts) < max(counts) / 1.5
    engine = open_ddp()
    losses = [engine.loss(ids, targets) for ids, targets, _ in micro_batches(rows(1), 1)]
    assert len({round(loss.item(), 3) for loss in losses}) > 1
    apart = [engine.model(*row).item() for row in micro_batches(batch, 1)]
    mean = sum(loss * count for loss, count in zip(apart, counts, strict=True)) / sum(counts)
    assert engine.step(micro_batches(batch, 2), 0.0)[0].item() == pytest.approx(mean, abs=1e-5)


def test_what_overflows_in_float16_is_left_out_and_the_scale_finds_its_height() -> None:
    engine = open_ddp(precision="float16")
    engine.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=3)
    before = weights_of(engine)
    skipped = 0
    while True:
        scale = engine.scaler.get_scale()
        loss, norm = engine.step(micro_batches(rows(1), 8), 0.01)
        if norm.isfinite():
            break
        skipped += 1
        assert loss.isfinite()
        assert torch.equal(weights_of(engine), before)
        assert engine.scaler.get_scale() == scale / 2
    assert 1 <= skipped < 20
    assert not torch.equal(weights_of(engine), before)
    steps = [state["step"].item() for state in engine.optimizer.state.values()]
    assert set(steps) == {1.0}  # those left out don't count for Adam's correction either
    engine.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    train(engine, range(2, 5))
    assert engine.scaler.get_scale() == 2048


def test_float16_learns_what_float32_learns() -> None:
    half, full = open_ddp(precision="float16"), open_ddp(precision="float32")
    found, expected = train(half, range(1, 21)), train(full, range(1, 21))
    assert expected[-1] < expected[0] - 0.5
    assert found == pytest.approx(expected, abs=0.02)
    assert found != expected


def test_a_step_left_out_is_told_and_forty_in_a_row_are_an_end(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl", ALONE, DivergenceMonitor(spec_of().config, BatchSchedule()), [], may_skip=True)
    one, overflow = torch.tensor(1.0), torch.tensor(math.inf)
    for step in range(1, 40):
        log.add(step, 0.1, one, overflow)
    log.add(40, 0.1, one, one)
    log.add(41, 0.1, one, torch.tensor(math.nan))
    log.flush()
    told = read_log(tmp_path / "log.jsonl")
    assert [row["step"] for row in told if row.get("skipped")] == [*range(1, 40), 41]
    assert [row["step"] for row in told if "gradient_norm" in row] == [40]
    for step in range(42, 81):
        log.add(step, 0.1, one, overflow)
    with pytest.raises(TrainingError, match="40 steps in a row"):
        log.flush()
    log = Log(tmp_path / "full.jsonl", ALONE, DivergenceMonitor(spec_of().config, BatchSchedule()), [])
    log.add(1, 0.1, one, overflow)
    with pytest.raises(TrainingError, match="gradient_norm is inf"):  # only a scale could be lowered
        log.flush()
    log = Log(tmp_path / "other.jsonl", ALONE, DivergenceMonitor(spec_of().config, BatchSchedule()), [], may_skip=True)
    log.add(1, 0.1, overflow, overflow)
    with pytest.raises(TrainingError, match="loss is inf"):
        log.flush()


@pytest.mark.parametrize("name", ["tf32", "float8"])
def test_a_precision_that_a_cpu_has_not_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        precision(spec_of(precision=name), ALONE)
    assert precision(spec_of(), ALONE) == "float32"


def test_the_profiles_z_loss_and_base_width_reach_the_model() -> None:
    model = open_ddp(z_loss=0.01, mup_base_width=8).model
    assert model.head.z_loss == 0.01
    assert model.get_parameter("norm.weight").unique().tolist() == [0.25]
    assert open_ddp().model.head.z_loss == 0


def test_a_first_batch_that_cant_be_shared_is_refused() -> None:
    assert open_ddp(batch_warmup_steps=4, global_batch=8).micro_batch == 8
    spec = spec_of(batch_warmup_steps=4, global_batch=8)
    with pytest.raises(ConfigError, match="The first batch is 1, which 2 processes"):
        rank_share(spec.config, spec.runtime.pretrain, ranks=2, cuda=False)


@pytest.mark.soak
def test_all_of_it_together_resumes_to_the_same_bytes(data: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    undisturbed, out = (output(tmp_path / name, engine="ddp", micro_batch=4) for name in ("undisturbed", "killed"))
    pretrain.function(ALL, *data, undisturbed)
    rows = read_log(undisturbed.path / "log.jsonl")
    assert rows[-1]["validation_loss"] < rows[0]["loss"] - 0.3
    assert rows[-1]["learning_rate"] == pytest.approx(ALL.learning_rate * ALL.final_share)
    assert undisturbed.counts["tokens_seen"] == (3 * 2 + 3 * 4 + 6 * 8) * 32
    assert load(undisturbed.path / "model").norm.get_parameter("weight").mean().item() == pytest.approx(
        0.5, rel=0.1
    )  # muP's multiplier
    interrupt_and_resume(pretrain, ALL, data, out, at=5)
    assert out.facts["resumed_from_step"] == 3
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(undisturbed.path))


@pytest.mark.soak
def test_a_growing_batch_teaches_the_same_under_every_engine(data: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    config = PretrainConfig.model_validate({**CONFIG.model_dump(), **GROWING})
    losses: list[list[float]] = []
    for runtime in ({"zero_stage": 2, "micro_batch": 2}, {"engine": "ddp", "micro_batch": 4, "processes": 2}):
        out = output(tmp_path / str(len(losses)), **runtime)
        pretrain.function(config, *data, out)
        losses.append(losses_of(out))
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)
    assert losses[0][-1] < losses[0][0] - 0.3
