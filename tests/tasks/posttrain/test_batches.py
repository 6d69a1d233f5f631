"""Every batch of SFT and DPO is whole, and the result doesn't depend on how it is computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from models.convert import load
from models.tokenizer import load_tokenizer
from storage.artifact import Artifact
from tasks.posttrain.batches import training_order
from tasks.posttrain.methods.dpo import DpoConfig, dpo
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.posttrain.rows.instruction import render_instruction
from tasks.training.logs import read_log
from tests.runtimes import runtime_of
from tests.tasks.posttrain.uneven import output, token_means, uneven_pairs, uneven_rows
from tests.tasks.pretrain.tiny_training import losses_of
from tests.tasks.tiny_model import make_model, write_rows

ROWS = 20  # two and a half batches


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_model(tmp_path_factory.mktemp("base") / "model"))


def test_batches_are_whole_and_go_on_across_epochs() -> None:
    order = training_order(SftConfig(epochs=2.5, global_batch=8), ROWS)
    assert len(order) == 7 * 8, "50 rows, rounded up to whole batches"
    epochs = [order[start : start + ROWS] for start in range(0, len(order), ROWS)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(ROWS))
    assert epochs[0] != epochs[1]
    assert len(set(epochs[2])) == len(epochs[2])
    assert order != training_order(SftConfig(epochs=2.5, global_batch=8, seed=1), ROWS)
    assert len(training_order(SftConfig(epochs=1, global_batch=8), 3)) == 8, "few rows are repeated within a batch"


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_the_loss_of_each_step_is_the_mean_over_the_tokens_of_a_whole_batch(
    processes: int, model: Artifact, tmp_path: Path
) -> None:
    rows = uneven_rows()[:ROWS]
    config = SftConfig(global_batch=8, validation_share=0.0, learning_rate=1e-12, max_dropped_share=0.0)
    out = output(tmp_path, "sft", micro_batch=2, processes=processes)
    sft.function(config, model, Artifact.at(write_rows(tmp_path / "pairs" / "all.jsonl", rows)), out)
    tokenizer, base = load_tokenizer(model.path), load(model.path)
    rendered = [render_instruction(rows[number], tokenizer, 128) for number in training_order(config, ROWS)]
    log = read_log(out.path / "log.jsonl")
    assert len(log) == 3
    for step, row in enumerate(log):
        loss, accuracy = token_means(base, rendered[8 * step : 8 * step + 8])
        assert row["loss"] == pytest.approx(loss, abs=1e-5)
        assert row["token_accuracy"] == pytest.approx(accuracy, abs=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_micro_batches_change_neither_losses_nor_weights(method: str, model: Artifact, tmp_path: Path) -> None:
    made = []
    for size in (1, 8):
        folder = tmp_path / str(size)
        out = output(folder, method, micro_batch=size)
        pairs = Artifact.at(
            write_rows(folder / "pairs" / "all.jsonl", (uneven_rows() if method == "sft" else uneven_pairs())[:ROWS])
        )
        settings = {"epochs": 1.5, "global_batch": 8, "validation_share": 0.2, "validation_every": 2}
        if method == "sft":
            sft.function(SftConfig.model_validate(settings), model, pairs, out)
        else:
            dpo.function(DpoConfig.model_validate(settings), model, pairs, out)
        made.append(out)
    one, eight = made
    log = read_log(one.path / "log.jsonl")
    assert [row["step"] for row in log if "validation_loss" in row] == [*range(2, len(log), 2), len(log)]
    assert losses_of(one) == pytest.approx(losses_of(eight), rel=1e-5)
    theirs, ours = (load(out.path / "model").state_dict() for out in made)
    assert all(torch.allclose(theirs[name], ours[name], atol=1e-5) for name in ours)
    assert one.counts["validation_loss"] == pytest.approx(eight.counts["validation_loss"], rel=1e-5)


def test_whoever_watches_hears_of_steps_and_validations_that_take_long(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from tasks.posttrain.callback import SILENCE_SECONDS, LogCallback
    from tasks.posttrain.spec import PosttrainSpec

    at = tmp_path.resolve()
    spec = PosttrainSpec(
        method="sft", config={}, runtime=runtime_of(), model=at, base="", rows=[], identity="", scratch=at, out=at
    )
    log, state, control = LogCallback(spec, {}), TrainerState(global_step=3, max_steps=50), TrainerControl()
    state.is_world_process_zero = True
    arguments = TrainingArguments(output_dir=str(at), report_to=[])
    log.on_prediction_step(arguments, state, control)
    log.on_log(arguments, state, control, {"loss": 2.0})
    assert capfd.readouterr().out == "", "nothing is due yet"
    log.reported -= SILENCE_SECONDS
    log.on_prediction_step(arguments, state, control)
    log.reported -= SILENCE_SECONDS
    log.on_log(arguments, state, control, {"loss": 2.0})
    told = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert told == [{"step": 3, "steps": 50, "batch": 2}, {"step": 3, "steps": 50, "loss": 2.0}]
