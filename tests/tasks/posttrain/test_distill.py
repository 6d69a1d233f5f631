"""Distillation: the divergences are those of the papers, and a student approaches its teacher."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.pretrained import load_pretrained
from models.tokenizer import load_tokenizer
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError, TokenizerMismatch
from tasks.base import BaseConfig
from tasks.posttrain.batches import training_order
from tasks.posttrain.check import check_runtime
from tasks.posttrain.conversations.divergence import divergence
from tasks.posttrain.conversations.on_policy import own_answers
from tasks.posttrain.methods.distill import DISTILL, DistillConfig, Divergence, distill
from tasks.posttrain.pair_lengths import render_rows
from tasks.posttrain.rows.instruction import prompt_tokens
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.posttrain.in_process import parts_of
from tests.tasks.posttrain.uneven import output
from tests.tasks.tiny_model import make_instructions, make_model

CONFIG = DistillConfig(epochs=1, global_batch=16, learning_rate=5e-3, validation_share=0.2)


def by_hand(student: Any, teacher: Any, kind: str, temperature: float) -> list[float]:
    found = []
    for s, t in zip(student / temperature, teacher / temperature, strict=True):
        q, p = np.exp(s) / np.exp(s).sum(), np.exp(t) / np.exp(t).sum()
        m = (p + q) / 2
        forward, reverse = (p * np.log(p / q)).sum(), (q * np.log(q / p)).sum()
        between = (p * np.log(p / m)).sum() / 2 + (q * np.log(q / m)).sum() / 2
        found.append({"forward": forward, "reverse": reverse, "jsd": between}[kind] * temperature**2)
    return found


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("kind", ["forward", "reverse", "jsd"])
def test_the_divergences_are_those_of_the_papers(kind: Divergence, temperature: float) -> None:
    student, teacher = np.random.default_rng(0).normal(size=(2, 5, 11)) * 3
    found = divergence(torch.tensor(student), torch.tensor(teacher), kind, temperature)
    assert found.tolist() == pytest.approx(by_hand(student, teacher, kind, temperature), rel=1e-5)
    assert divergence(torch.tensor(student), torch.tensor(student), kind).abs().max() < 1e-6


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.8])
def test_the_generalised_divergence_is_that_of_trl(beta: float) -> None:
    from trl.experimental.gkd import GKDTrainer

    student, teacher = torch.randn(2, 1, 6, 11, generator=torch.Generator().manual_seed(0)) * 3
    theirs = GKDTrainer.generalized_jsd_loss(student, teacher, beta=beta, reduction="sum")
    assert float(divergence(student, teacher, "jsd", beta=beta).sum()) == pytest.approx(float(theirs), rel=1e-5)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Artifact, Artifact]:
    """A student whose last layer differs from its teacher's, instructions, and the teacher."""
    folder = tmp_path_factory.mktemp("distill")
    teacher = make_model(folder / "teacher")
    student = load_pretrained(teacher)
    with torch.no_grad():
        student.model.layers[1].mlp.down_proj.weight.normal_(generator=torch.Generator().manual_seed(0))
    make_model(folder / "student")  # for the files beside the weights
    student.save_pretrained(folder / "student")
    return Artifact.at(folder / "student"), Artifact.at(make_instructions(folder / "pairs")), Artifact.at(teacher)


@pytest.fixture(scope="module")
def taught(inputs: tuple[Artifact, Artifact, Artifact], tmp_path_factory: pytest.TempPathFactory) -> Output:
    out = output(tmp_path_factory.mktemp("taught"), "distill")
    distill.function(CONFIG, *inputs, out)
    return out


def test_a_student_comes_nearer_to_its_teacher(taught: Output) -> None:
    rows = taught.counts["tables"]["Validation"]
    assert rows[-1]["divergence"] < 0.5 * rows[0]["divergence"]
    assert rows[-1]["loss"] == pytest.approx(rows[-1]["divergence"], abs=1e-4), "the hard share is 0"
    assert taught.counts["validation_divergence"] == rows[-1]["divergence"]


def trained_on_policy(inputs: tuple[Artifact, Artifact, Artifact], folder: Path, **settings: Any) -> list[Any]:
    """The log of a trainer whose student answers every prompt itself."""
    micro_batch = settings.pop("micro_batch", None)
    config = DistillConfig.model_validate({**ON_POLICY, **settings})
    student, pairs, teacher = (one.path for one in inputs)
    tokenizer = load_tokenizer(student)
    rows, _, _ = render_rows(DISTILL, config, [pairs / "all.jsonl"], tokenizer, 128)
    runtime = {} if micro_batch is None else {"micro_batch": micro_batch}
    parts = parts_of(DISTILL, config, student, rows, folder, **runtime)
    trainer: Any = DISTILL.make_trainer(dataclasses.replace(parts, teacher=teacher))
    trainer.train_dataset = trainer.train_dataset.select(training_order(config, len(rows)))
    trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry]


ON_POLICY = {**CONFIG.model_dump(), "validation_share": 0, "on_policy_share": 1, "max_new_tokens": 6}


def test_a_student_comes_nearer_on_its_own_answers(inputs: tuple[Artifact, Artifact, Artifact], tmp_path: Path) -> None:
    log = trained_on_policy(inputs, tmp_path / "whole", divergence="reverse")
    assert log[-1]["divergence"] < 0.7 * log[0]["divergence"]
    assert min(entry["completions/clipped_ratio"] for entry in log) > 0.8, "it has not learned to end"
    assert min(entry["completions/mean_length"] for entry in log) > 5
    # The loss is a mean over the sampled tokens, in whichever micro-batches they are
    divided = trained_on_policy(inputs, tmp_path / "divided", divergence="reverse", micro_batch=4, epochs=0.25)
    assert divided[0]["loss"] == pytest.approx(log[0]["loss"], rel=1e-4)
    for other in divided:
        assert other["loss"] == pytest.approx(other["divergence"], rel=1e-4)


def test_the_last_answer_is_the_students_in_a_share_of_rows(inputs: tuple[Artifact, Artifact, Artifact]) -> None:
    rows = [{"input_ids": [n, 11, 12, 13, 14, 15], "labels": [-100, 11, -100, -100, 14, 15]} for n in range(20, 60)]
    asked: dict[str, Any] = {"seed": "0 7", "ends": [1], "max_new_tokens": 3, "learned": 8}
    model, tokenizer = load_pretrained(inputs[0].path), load_tokenizer(inputs[0].path)
    own = own_answers(model, tokenizer, rows, share=0.5, **asked)
    changed = [number for number, row in enumerate(own.rows) if row != rows[number]]
    assert 10 < len(changed) < 30
    assert len(own.lengths) == len(changed)
    for number in changed:
        row = own.rows[number]
        assert row["input_ids"][:4] == rows[number]["input_ids"][:4]
        assert row["labels"] == [*[-100] * 4, *row["input_ids"][4:]], "earlier answers are part of the prompt"
    again = own_answers(model, tokenizer, rows[:20], share=0.5, **asked)
    assert again.rows == own.rows[:20], "other rows of the step change nothing"
    assert own_answers(model, tokenizer, rows, share=0.5, **{**asked, "seed": "0 8"}).rows != own.rows
    assert own_answers(model, tokenizer, rows, share=1.0, **asked).rows[changed[0]] == own.rows[changed[0]]


def test_rows_without_room_for_an_answer_are_dropped(inputs: tuple[Artifact, Artifact, Artifact]) -> None:
    config = DistillConfig(on_policy_share=1, max_new_tokens=112, max_dropped_share=1)
    tokenizer = load_tokenizer(inputs[0].path)
    rows = [inputs[1].path / "all.jsonl"]
    train, _, dropped = render_rows(DISTILL, config, rows, tokenizer, 128)
    assert dropped["overlong"] > 0
    assert max(prompt_tokens(row["labels"]) for row in train) + 112 == 128


def test_a_teacher_of_another_vocabulary_is_refused_by_name(
    inputs: tuple[Artifact, Artifact, Artifact], tmp_path: Path
) -> None:
    other = make_model(tmp_path / "other", vocab_size=640)
    config = DistillConfig(teacher_from=BaseConfig(folder=str(other)))
    with pytest.raises(TokenizerMismatch, match="The teacher has another vocabulary") as refused:
        distill.function(config, *inputs[:2], None, output(tmp_path / "out", "distill"))
    assert "best_of_n with this teacher" in str(refused.value.remedy)


@pytest.mark.soak
def test_a_teacher_outside_the_chain_teaches_as_one_within(
    inputs: tuple[Artifact, Artifact, Artifact], taught: Output, tmp_path: Path
) -> None:
    config = CONFIG.model_copy(update={"teacher_from": BaseConfig(folder=str(inputs[2].path))})
    out = output(tmp_path, "distill")
    distill.function(config, *inputs[:2], None, out)
    assert (out.path / "model" / "model.safetensors").read_bytes() == (
        taught.path / "model" / "model.safetensors"
    ).read_bytes()
    assert (
        distill.fingerprints(config)["base/model.safetensors"] in list_files(inputs[2].path)["model.safetensors"].sha256
    )


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"beta": 0.3}, "divergence: jsd"),
        ({"max_new_tokens": 8}, "on_policy_share"),
        ({"teacher": "sft", "teacher_from": {"folder": "a"}}, "two teachers"),
        ({"on_policy_share": 1, "hard_share": 0.5}, "hard_share"),
    ],
)
def test_settings_that_change_nothing_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        DistillConfig.model_validate(settings)


@pytest.mark.parametrize(
    "posttrain", [{"engine": "fsdp"}, {"engine": "deepspeed", "zero_stage": 3}, {"compile": "default"}]
)
def test_engines_that_cannot_sample_are_refused(posttrain: dict[str, Any]) -> None:
    runtime = Runtime.model_validate({"training": {"processes": 2}, "posttrain": posttrain})
    with pytest.raises(ConfigError, match="answers can't be sampled"):
        check_runtime("distill", DistillConfig(on_policy_share=0.5), runtime)
    check_runtime("distill", DistillConfig(), runtime)


@pytest.mark.soak
def test_two_processes_sample_the_answers_of_one(inputs: tuple[Artifact, Artifact, Artifact], tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"on_policy_share": 0.5, "max_new_tokens": 6})
    alone, both = output(tmp_path / "1", "distill"), output(tmp_path / "2", "distill", processes=2)
    for out in (alone, both):
        distill.function(config, *inputs, out)
    assert both.counts["validation_divergence"] == pytest.approx(alone.counts["validation_divergence"], abs=1e-3)
    killed = output(tmp_path / "3", "distill", checkpoint_every=2, log_every=1)
    interrupt_and_resume(distill, config, inputs, killed, at=5)
    assert tree_digest(list_files(killed.path)) == tree_digest(list_files(alone.path))


@pytest.mark.soak
def test_interrupted_and_resumed_it_ends_with_the_same_bytes(
    inputs: tuple[Artifact, Artifact, Artifact], taught: Output, tmp_path: Path
) -> None:
    out = output(tmp_path, "distill", checkpoint_every=2, log_every=1)
    interrupt_and_resume(distill, CONFIG, inputs, out, at=5)
    assert out.facts["resumed_from_step"] == 4
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(taught.path))


@pytest.mark.soak
@pytest.mark.parametrize("engine", [{}, {"engine": "deepspeed", "zero_stage": 3}, {"engine": "fsdp", "zero_stage": 3}])
def test_processes_and_engines_change_nothing_but_rounding(
    engine: dict[str, Any], inputs: tuple[Artifact, Artifact, Artifact], tmp_path: Path
) -> None:
    config = CONFIG.model_copy(update={"hard_share": 0.5})
    alone = output(tmp_path / "1", "distill")
    both = output(tmp_path / "2", "distill", processes=2, **engine)
    for out in (alone, both):
        distill.function(config, *inputs, out)
    for name in ("validation_loss", "validation_divergence", "validation_cross_entropy"):
        assert both.counts[name] == pytest.approx(alone.counts[name], abs=1e-3)
    mixed = (alone.counts["validation_divergence"] + alone.counts["validation_cross_entropy"]) / 2
    assert alone.counts["validation_loss"] == pytest.approx(mixed, abs=1e-4)
