"""SFT and DPO: what bears loss, what is dropped, and a resume that is exact."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from models.convert import load
from models.cross_entropy import IGNORED
from models.tokenizer import load_tokenizer
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError, EmptyOutput, SourceError, TokenizerMismatch, TrainingError
from tasks.posttrain.callback import latest_checkpoint
from tasks.posttrain.methods.dpo import DpoConfig, dpo
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.posttrain.rows import rendering as rows
from tasks.posttrain.spec import PosttrainSpec
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.training.logs import read_log
from tests.runtimes import runtime_of
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.pretrain.tiny_training import losses_of
from tests.tasks.tiny_model import answer, make_instructions, make_model, make_preferences, question, write_rows

SFT = SftConfig(epochs=2, global_batch=16, learning_rate=5e-3)
DPO = DpoConfig(epochs=1, global_batch=16, learning_rate=1e-3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_model(tmp_path_factory.mktemp("base") / "model"))


def output(folder: Path, stage: str, **runtime: Any) -> Output:
    settings = {"threads": 1, "device": "cpu", "checkpoint_every": 4, "log_every": 1, **runtime}
    return Output.at(folder, stage=stage, runtime=runtime_of(**settings))


@pytest.fixture(scope="module")
def tuned(model: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Output:
    folder = tmp_path_factory.mktemp("sft")
    out = output(folder, "sft")
    sft.function(SFT, model, Artifact.at(make_instructions(folder / "pairs")), out)
    return out


@pytest.fixture(scope="module")
def aligned(tuned: Output, tmp_path_factory: pytest.TempPathFactory) -> Output:
    folder = tmp_path_factory.mktemp("dpo")
    out = output(folder, "dpo")
    dpo.function(DPO, Artifact.at(tuned.path / "model"), Artifact.at(make_preferences(folder / "pairs")), out)
    return out


def test_sft_learns_to_answer_and_its_model_loads_in_transformers(tuned: Output) -> None:
    log = read_log(tuned.path / "log.jsonl")
    assert log[-1]["loss"] < 0.5 * log[0]["loss"]
    assert log[0]["loss"] == pytest.approx(math.log(600), abs=0.4)
    assert tuned.counts["documents"] == {"in": 192, "kept": 192, "removed": {}, "quarantined": 0}
    assert 0 < tuned.counts["supervised_share"] < 1
    config = json.loads((tuned.path / "model" / "config.json").read_text())
    assert config["use_cache"] is True
    assert not list(tuned.path.rglob("*.bin")), "nothing pickled"
    assert load(tuned.path / "model").shape.vocab_size == 600


def test_the_loss_is_that_of_the_assistants_tokens_alone(model: Artifact, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(model.path)
    row = {"id": "1", "messages": [*question("fox"), answer("wood")]}
    rendered = rows.render_instruction(row, tokenizer, 128)
    ids, labels = torch.tensor([rendered["input_ids"]]), torch.tensor([rendered["labels"]])
    assert tokenizer.decode(labels[labels != IGNORED]) == "It lives in the wood.<|end|>"
    with torch.no_grad():
        expected = float(load(model.path)(ids[:, :-1], labels[:, 1:]))
    out = output(tmp_path, "sft")
    pairs = Artifact.at(write_rows(tmp_path / "pairs" / "all.jsonl", [{**row, "source": "test"}] * 4))
    config = SftConfig(epochs=1, global_batch=4, validation_share=0.0, warmup_share=0.0)
    sft.function(config, model, pairs, out)
    assert read_log(out.path / "log.jsonl")[0]["loss"] == pytest.approx(expected, abs=2e-4)


def test_dpo_starts_at_ln_2_and_prefers_the_preferred(aligned: Output) -> None:
    log = read_log(aligned.path / "log.jsonl")
    assert log[0]["loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert log[-1]["loss"] < 0.5
    assert aligned.counts["validation_preference_accuracy"] > 0.9


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_interrupted_and_resumed_it_ends_with_the_same_bytes(
    method: str, model: Artifact, tuned: Output, aligned: Output, tmp_path: Path
) -> None:
    stage, config, whole = (sft, SFT, tuned) if method == "sft" else (dpo, DPO, aligned)
    make = make_instructions if method == "sft" else make_preferences
    begins_with = model if method == "sft" else Artifact.at(tuned.path / "model")
    inputs = (begins_with, Artifact.at(make(tmp_path / "pairs")))
    out = output(tmp_path, method)
    interrupt_and_resume(stage, config, inputs, out, at=5)
    assert out.facts["resumed_from_step"] == 4
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(whole.path))
    assert out.counts == whole.counts


def test_unusable_pairs_are_dropped_by_reason_and_too_many_end_the_run(model: Artifact) -> None:
    tokenizer = load_tokenizer(model.path)
    good = {"id": "1", "messages": [*question("fox"), answer("wood")]}
    bad = [
        {"id": "2", "messages": [*question("fox " * 200), answer("wood")]},
        {"id": "3", "messages": [*question("<|end|>"), answer("wood")]},
        {"id": "4", "messages": question("fox")},
    ]
    render = lambda row: rows.render_instruction(row, tokenizer, 128)  # noqa: E731
    train, validation, dropped = rows.prepare([good, *bad], render, validation_share=0.0, max_dropped_share=0.8)
    assert (len(train), len(validation)) == (1, 0)
    assert dropped == {"overlong": 1, "special_token_in_text": 1, "no_supervised_token": 1}
    with pytest.raises(EmptyOutput, match="3 can't be used"):
        rows.prepare([good, *bad], render, validation_share=0.0, max_dropped_share=0.5)
    with pytest.raises(EmptyOutput, match="no pairs"):
        rows.prepare([], render, validation_share=0.0, max_dropped_share=0.5)
    pair = {"id": "5", "prompt": question("fox"), "chosen": [answer("wood")], "rejected": [answer("wood")]}
    with pytest.raises(rows.Dropped, match="equal_answers"):
        rows.render_preference(pair, tokenizer, 128)


def test_what_does_not_belong_together_is_refused(model: Artifact, tmp_path: Path) -> None:
    pairs = Artifact.at(make_instructions(tmp_path / "pairs"))
    with pytest.raises(ConfigError, match="max_length is 200, but the model's context is 128"):
        sft.function(SFT.model_copy(update={"max_length": 200}), model, pairs, output(tmp_path / "a", "sft"))
    changed = shutil.copytree(model.path, tmp_path / "changed")
    (changed / "chat_template.jinja").write_text("other")
    with pytest.raises(TokenizerMismatch):
        sft.function(SFT, Artifact.at(changed), pairs, output(tmp_path / "b", "sft"))
    (tmp_path / "broken.jsonl").write_text('{"id": 1}\nbroken\n')
    with pytest.raises(SourceError, match="line 2"):
        list(rows.read_rows([tmp_path / "broken.jsonl"]))


def test_a_checkpoint_of_another_run_is_refused_and_a_torn_one_removed(tmp_path: Path) -> None:
    def spec(model_digest: str) -> PosttrainSpec:
        return PosttrainSpec(
            method="sft", config=SFT, runtime=Runtime(), model=tmp_path, model_digest=model_digest, rows=[],
            rows_digest="rows", scratch=tmp_path, out=tmp_path,
        )  # fmt: skip

    mine = spec("mine")
    for step in (4, 8):
        (mine.checkpoints / f"checkpoint-{step}").mkdir(parents=True)
    marker = mine.checkpoints / "checkpoint-4" / "complete.json"
    marker.write_text(json.dumps({"identity": mine.identity, "step": 4}))
    assert latest_checkpoint(mine) == (mine.checkpoints / "checkpoint-4", 4)
    assert not (mine.checkpoints / "checkpoint-8").exists()
    with pytest.raises(TrainingError, match="refused"):
        latest_checkpoint(spec("other"))


def test_two_processes_learn_what_one_does(model: Artifact, tuned: Output, tmp_path: Path) -> None:
    out = output(tmp_path, "sft", processes=2)
    sft.function(SFT, model, Artifact.at(make_instructions(tmp_path / "pairs")), out)
    assert losses_of(out) == pytest.approx(losses_of(tuned), abs=5e-3)
