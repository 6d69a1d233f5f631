"""SFT and DPO: what bears loss, what is dropped, and a resume that is exact."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from models.convert import load
from models.kernels.cross_entropy import IGNORED
from models.tokenizer import load_tokenizer
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError, EmptyOutput, LostProcess, SourceError, TokenizerMismatch, TrainingError
from tasks.posttrain.checkpoints import latest_checkpoint, mark_whole
from tasks.posttrain.methods.dpo import DpoConfig, dpo
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.posttrain.rows.form import Dropped
from tasks.posttrain.rows.instruction import render_instruction
from tasks.posttrain.rows.preference import render_preference
from tasks.posttrain.rows.prepare import prepare, read_rows
from tasks.posttrain.spec import PosttrainSpec
from tasks.stage.output import Output
from tasks.training.checkpoint_marker import CheckpointMarker, newest_sound
from tasks.training.logs import read_log
from tasks.training.recovery.fault_injection import VARIABLE
from tests.runtimes import runtime_of
from tests.tasks.interrupt import interrupt, interrupt_and_resume
from tests.tasks.planted_code import mark_again, plant_code
from tests.tasks.pretrain.tiny_training import losses_of
from tests.tasks.tiny_model import answer, make_instructions, make_model, make_preferences, question, write_rows

SFT = SftConfig(epochs=2, global_batch=16, learning_rate=5e-3)
DPO = DpoConfig(epochs=1, global_batch=16, learning_rate=1e-3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_model(tmp_path_factory.mktemp("base") / "model"))


def output(folder: Path, stage: str, **runtime: Any) -> Output:
    settings = {"threads": 1, "device": "cpu", "checkpoint_every": 4, "log_every": 1, **runtime}
    return Output.at(folder, stage=stage, runtime=runtime_of(group="posttrain", **settings))


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


@pytest.mark.soak
def test_validation_is_measured_along_the_training(tuned: Output, aligned: Output) -> None:
    for out, most in ((tuned, "validation_token_accuracy"), (aligned, "validation_preference_accuracy")):
        log = read_log(out.path / "log.jsonl")
        validated = {row["step"]: row for row in log if "validation_loss" in row}
        assert 10 <= len(validated) <= 12
        assert len(log) in validated
        assert validated[len(log)]["validation_loss"] == pytest.approx(out.counts["validation_loss"], abs=1e-6)
        assert validated[len(log)][most] == pytest.approx(out.counts[most], abs=1e-6)
        table = {row["step"]: row["loss"] for row in out.counts["tables"]["Validation"]}
        assert list(table) == [0, *validated], "the first one before any step"
        assert {step: table[step] for step in validated} == pytest.approx(
            {step: row["validation_loss"] for step, row in validated.items()}, abs=1e-6
        )
        assert out.counts["best_validation_loss"] == min(table.values()) == table[out.counts["best_validation_step"]]


def test_the_loss_is_that_of_the_assistants_tokens_alone(model: Artifact, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(model.path)
    row = {"id": "1", "messages": [*question("fox"), answer("wood")]}
    rendered = render_instruction(row, tokenizer, 128)
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


@pytest.mark.parametrize("method", ["sft", pytest.param("dpo", marks=pytest.mark.soak)])
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


@pytest.mark.soak
def test_memory_that_runs_out_takes_fewer_rows_and_goes_on(
    model: Artifact, tuned: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs, out = Artifact.at(make_instructions(tmp_path / "pairs")), output(tmp_path, "sft")
    monkeypatch.setenv(VARIABLE, "oom@6,kill@4")
    with pytest.raises(LostProcess, match="killed by SIGKILL"):
        sft.function(SFT, model, pairs, out)
    sft.function(SFT, model, pairs, out)
    assert out.facts["out_of_memory"] == 1
    assert out.facts["resumed_from_step"] == 4
    assert losses_of(out) == pytest.approx(losses_of(tuned), rel=1e-5)


def test_unusable_pairs_are_dropped_by_reason_and_too_many_end_the_run(model: Artifact) -> None:
    tokenizer = load_tokenizer(model.path)
    good = {"id": "1", "messages": [*question("fox"), answer("wood")]}
    bad = [
        {"id": "2", "messages": [*question("fox " * 200), answer("wood")]},
        {"id": "3", "messages": [*question("<|end|>"), answer("wood")]},
        {"id": "4", "messages": question("fox")},
    ]
    render = lambda row, length: render_instruction(row, tokenizer, length)  # noqa: E731
    train, validation, dropped = prepare([good, *bad], render, 128, validation_share=0.0, max_dropped_share=0.8)
    assert (len(train), len(validation)) == (1, 0)
    assert dropped == {"overlong": 1, "special_token_in_text": 1, "no_supervised_token": 1}
    with pytest.raises(EmptyOutput, match="3 of 4 pairs can't be used"):
        prepare([good, *bad], render, 128, validation_share=0.0, max_dropped_share=0.5)
    with pytest.raises(EmptyOutput, match="No pairs"):
        prepare([], render, 128, validation_share=0.0, max_dropped_share=0.5)
    pair = {"id": "5", "prompt": question("fox"), "chosen": [answer("wood")], "rejected": [answer("wood")]}
    with pytest.raises(Dropped, match="equal_answers"):
        render_preference(pair, tokenizer, 128)


@pytest.mark.soak
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
        list(read_rows([tmp_path / "broken.jsonl"]))


def test_a_checkpoint_of_another_run_or_engine_is_refused_and_a_torn_one_removed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def spec(identity: str, **runtime: Any) -> PosttrainSpec:
        return PosttrainSpec(
            method="sft",
            config=SFT.model_dump(mode="json"),
            runtime=runtime_of(group="posttrain", **runtime),
            model=tmp_path,
            base="base",
            rows=[],
            identity=identity,
            scratch=tmp_path,
            out=tmp_path,
        )

    mine = spec("mine")
    for step in (4, 8):
        (mine.checkpoints / f"checkpoint-{step}").mkdir(parents=True)
        (mine.checkpoints / f"checkpoint-{step}" / "weights").write_text("w")
    mark_whole(mine, 4, 1)
    assert latest_checkpoint(mine, 2) == (mine.checkpoints / "checkpoint-4", 4), "DDP may change its processes"
    assert not (mine.checkpoints / "checkpoint-8").exists()
    (mine.checkpoints / "checkpoint-6").mkdir()
    mark_whole(mine, 6, 1)
    (mine.checkpoints / "checkpoint-6" / "more").write_text("m")
    assert latest_checkpoint(mine, 1) == (mine.checkpoints / "checkpoint-4", 4)
    told = "the checkpoint of step 6 is damaged (more is not in complete.json): resuming from step 4"
    assert json.loads(capfd.readouterr().out) == {"note": told}
    with pytest.raises(TrainingError, match="refused"):
        latest_checkpoint(spec("other"), 1)
    with pytest.raises(TrainingError, match=r"made with runtime\.posttrain\.engine ddp"):
        latest_checkpoint(spec("mine", engine="deepspeed", zero_stage=2), 2)


ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "zero 2": {"engine": "deepspeed", "zero_stage": 2, "offload": "optimizer"},
    "zero 3": {"engine": "deepspeed", "zero_stage": 3},
    "fsdp": {"engine": "fsdp", "zero_stage": 3, "recompute": "full"},
}
SHORT = SFT.model_copy(update={"epochs": 0.4})


@pytest.fixture(scope="module")
def short(model: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Output:
    folder = tmp_path_factory.mktemp("short")
    out = output(folder, "sft")
    sft.function(SHORT, model, Artifact.at(make_instructions(folder / "pairs")), out)
    return out


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES)
def test_two_processes_of_any_engine_learn_what_one_does(
    engine: str, model: Artifact, short: Output, tmp_path: Path
) -> None:
    out = output(tmp_path, "sft", processes=2, **ENGINES[engine])
    sft.function(SHORT, model, Artifact.at(make_instructions(tmp_path / "pairs")), out)
    assert losses_of(out) == pytest.approx(losses_of(short), abs=5e-4)
    assert norms_of(out) == pytest.approx(norms_of(short), rel=1e-3)
    theirs, ours = (load(made.path / "model").state_dict() for made in (out, short))
    assert all(torch.allclose(theirs[name], ours[name], atol=1e-4) for name in ours)
    assert tensors_of(out) == tensors_of(short), "a tied weight is saved only once"


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["zero 3", "fsdp", "context"])
def test_dpo_and_its_reference_are_sharded_too(engine: str, tuned: Output, aligned: Output, tmp_path: Path) -> None:
    out = output(tmp_path, "dpo", processes=2, **{**ENGINES, "context": {"context_parallel": 2}}[engine])
    inputs = (Artifact.at(tuned.path / "model"), Artifact.at(make_preferences(tmp_path / "pairs")))
    interrupt_and_resume(dpo, DPO, inputs, out, at=5)
    assert out.facts["resumed_from_step"] == 4
    assert losses_of(out) == pytest.approx(losses_of(aligned), abs=5e-4)


def tensors_of(out: Output) -> set[str]:
    with safe_open(out.path / "model" / "model.safetensors", framework="pt") as file:
        return set(file.keys())


def norms_of(out: Output) -> list[float]:
    return [row["gradient_norm"] for row in read_log(out.path / "log.jsonl")]


@pytest.mark.soak
def test_compiled_it_learns_the_same_and_saves_under_the_same_names(
    model: Artifact, short: Output, tmp_path: Path
) -> None:
    out = output(tmp_path, "sft", compile="default")
    sft.function(SHORT, model, Artifact.at(make_instructions(tmp_path / "pairs")), out)
    assert losses_of(out) == pytest.approx(losses_of(short), abs=5e-4)
    theirs, ours = (load(made.path / "model").state_dict() for made in (out, short))
    assert all(torch.allclose(theirs[name], ours[name], atol=1e-4) for name in ours)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("engine", "file"),
    [
        ("ddp", "optimizer.pt"),
        *(
            pytest.param(engine, file, marks=pytest.mark.soak)
            for engine, file in [
                ("ddp", "rng_state.pth"),
                ("ddp", "scheduler.pt"),
                ("fsdp", "optimizer.bin"),
                ("zero 2", "*/*model_states.pt"),
                ("zero 3", "*/*optim_states.pt"),
            ]
        ),
    ],
)
def test_a_file_that_was_replaced_by_code_is_refused_and_does_not_run(
    engine: str, file: str, model: Artifact, tmp_path: Path
) -> None:
    settings = {} if engine == "ddp" else {"processes": 2, **ENGINES[engine]}
    out, ran = output(tmp_path, "sft", **settings), tmp_path / "ran"
    inputs = (model, Artifact.at(make_instructions(tmp_path / "pairs")))
    interrupt(sft, SFT, inputs, out, at=5)
    (folder,) = (out.scratch / "checkpoints").glob("checkpoint-*")
    plant_code(next(folder.glob(file)), ran)
    named = file.rpartition("*")[2].rpartition("/")[2]
    if engine == "ddp":
        with pytest.raises(TrainingError, match=f"{named} has .* bytes"):
            newest_sound(folder.parent, CheckpointMarker.read(folder).identity)
    mark_again(folder)
    with pytest.raises(TrainingError, match="contains more than states, which was not loaded"):
        sft.function(SFT, *inputs, out)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"zero_stage": 3}, "zero_stage is 3, which the engine ddp can't do"),
        ({"engine": "deepspeed", "processes": 2}, "zero_stage is 0, which the engine deepspeed can't do"),
        ({"engine": "fsdp", "zero_stage": 2, "processes": 2}, "zero_stage is 2, which the engine fsdp can't do"),
        ({"engine": "fsdp", "offload": "optimizer", "processes": 2}, "offload is optimizer, which the engine fsdp"),
        ({"engine": "fsdp", "compile": "default", "processes": 2}, "compile is default, which the engine fsdp"),
        ({"engine": "fsdp"}, "engine is fsdp, which shards a model over processes, but only one is set"),
        (
            {"engine": "deepspeed", "zero_stage": 2, "processes": 2, "context_parallel": 2},
            "context_parallel is 2, which the engine deepspeed",
        ),
        ({"processes": 3, "context_parallel": 2}, "context_parallel is 2, which 3 processes can't be divided by"),
        ({"processes": 2, "context_parallel": 2, "compile": "default"}, "compile is default, which context_parallel"),
        ({"processes": 3}, "sft.global_batch is 16, which 3 processes can't share evenly"),
    ],
    ids=str,
)
def test_what_an_engine_cant_do_is_refused_by_name_before_anything_starts(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        sft.check_runtime(SFT, runtime_of(group="posttrain", **settings))


@pytest.mark.soak
def test_as_many_checkpoints_are_kept_as_the_runtime_says(model: Artifact, tmp_path: Path) -> None:
    pairs = Artifact.at(make_instructions(tmp_path / "pairs"))
    out = output(tmp_path, "sft", checkpoint_every=1, keep_checkpoints=3)
    interrupt(sft, SFT, (model, pairs), out, at=6)
    assert len(list((out.scratch / "checkpoints").glob("checkpoint-*"))) in (3, 4), "one may be half written"
