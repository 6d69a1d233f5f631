"""The reward model: TRL's own losses, an exact resume, a judge that transformers loads, and honest probabilities."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from models.tokenizer import load_tokenizer
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError
from tasks.posttrain.batches import training_order
from tasks.posttrain.methods.reward import REWARD, RewardConfig, reward
from tasks.posttrain.pair_lengths import render_rows
from tasks.posttrain.reward_model.calibration import accuracy, calibration, expected_calibration_error, wilson
from tasks.posttrain.reward_model.model import MEAN_FIELD, Judge
from tasks.stage.output import Output
from tasks.training.logs import read_log
from tests.runtimes import runtime_of
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.tiny_model import make_model, make_preferences

CONFIG = RewardConfig(epochs=2, global_batch=16, learning_rate=1e-3, validation_share=0.2)


def test_the_interval_of_an_accuracy_is_wilsons() -> None:
    # Newcombe 1998, table I: 81 of 263, and 0 of 20
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    share, low, high = accuracy([1.0, 2.0, -1.0, 0.0])
    assert (share, (low, high)) == (0.5, wilson(2, 4)), "equal rewards count as wrong"


def test_a_reward_is_less_the_mean_of_the_answers_that_were_trained_on() -> None:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    model: Any = LlamaForSequenceClassification(
        LlamaConfig(
            vocab_size=16,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=8,
            num_labels=1,
            pad_token_id=0,
        )
    )
    nobody: Any = None  # rows are already ids
    rows = [[5, 6, 7], [8, 9]]
    plain = Judge(model, nobody)._of_ids(rows)
    setattr(model.config, MEAN_FIELD, 0.75)
    assert torch.equal(Judge(model, nobody)._of_ids(rows), plain - 0.75)


def test_calibration_compares_probabilities_with_shares() -> None:
    def margins(probability: float, right: int, wrong: int) -> list[float]:
        logit = math.log(probability / (1 - probability))
        return [logit] * right + [-logit] * wrong

    perfect = calibration(margins(0.75, 3, 1) + margins(0.95, 19, 1))
    assert [(each.pairs, each.low, each.high) for each in perfect] == [(4, 0.7, 0.8), (20, 0.9, 1.0)]
    assert expected_calibration_error(perfect) == pytest.approx(0, abs=1e-12)
    boasting = calibration(margins(0.95, 10, 10))
    assert boasting[0].observed == 0.5
    assert expected_calibration_error(boasting) == pytest.approx(0.45)
    assert calibration([1e9 * 0])[0].low == 0.5


def test_a_judge_is_trained_whole() -> None:
    with pytest.raises(ValueError, match="reward trains all weights"):
        RewardConfig.model_validate({"adapter": {"rank": 4}})


def output(folder: Path, **runtime: Any) -> Output:
    settings = {"threads": 1, "device": "cpu", "checkpoint_every": 4, "log_every": 1, **runtime}
    return Output.at(folder, stage="reward", runtime=runtime_of(group="posttrain", **settings))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_model(tmp_path_factory.mktemp("base") / "model"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_preferences(tmp_path_factory.mktemp("pairs")))


@pytest.fixture(scope="module")
def judged(model: Artifact, pairs: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Output:
    out = output(tmp_path_factory.mktemp("reward"))
    reward.function(CONFIG, model, pairs, out)
    return out


@pytest.mark.soak
def test_it_learns_what_is_preferred_and_says_how_sure_it_is(judged: Output) -> None:
    log = read_log(judged.path / "log.jsonl")
    assert len(log) >= 19
    assert log[-1]["loss"] < 0.2 < 0.6 < log[0]["loss"]
    counts = judged.counts
    low, high = counts["held_out_accuracy_95"]
    assert 0.8 < low < counts["held_out_accuracy"] <= high <= 1
    assert 0 <= counts["calibration_error"] < 0.3
    held_out = sum(row["pairs"] for row in counts["tables"]["Calibration"])
    assert 0 < held_out < counts["documents"]["kept"] == 192


@pytest.mark.soak
def test_its_losses_are_those_of_trl_alone(judged: Output, model: Artifact, pairs: Artifact, tmp_path: Path) -> None:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import RewardConfig as Arguments
    from trl import RewardTrainer

    tokenizer = load_tokenizer(model.path)
    rows, _, _ = render_rows(REWARD, CONFIG, pairs.files("*.jsonl"), tokenizer, 128)
    ordered = Dataset.from_list([rows[number] for number in training_order(CONFIG, len(rows))])
    log = read_log(judged.path / "log.jsonl")
    losses: list[float] = []

    class Losses(TrainerCallback):  # type: ignore[misc]
        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            losses.extend([logs["loss"]] if "loss" in logs else [])

    arguments = Arguments(
        output_dir=str(tmp_path),
        max_steps=len(log),
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=round(0.05 * len(log)),
        max_grad_norm=1.0,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        seed=0,
        train_sampling_strategy="sequential",
        center_rewards_coefficient=0.01,
        report_to=[],
        gradient_checkpointing=False,
        save_strategy="no",
        disable_tqdm=True,
    )
    RewardTrainer(
        str(model.path), args=arguments, train_dataset=ordered, processing_class=tokenizer, callbacks=[Losses()]
    ).train()
    assert [row["loss"] for row in log][:20] == pytest.approx(losses[:20], abs=1e-5)


@pytest.mark.soak
def test_its_model_is_a_classifier_of_transformers_whose_mean_reward_is_known(judged: Output, pairs: Artifact) -> None:
    from transformers import AutoModelForSequenceClassification

    from tasks.posttrain.reward_model.model import MEAN_FIELD, Judge

    loaded = AutoModelForSequenceClassification.from_pretrained(judged.path / "model")
    assert loaded.config.num_labels == 1
    tokenizer = load_tokenizer(judged.path / "model")
    rows, _, _ = render_rows(REWARD, CONFIG, pairs.files("*.jsonl"), tokenizer, 128)
    conversations = [[*row["prompt"], *row[answer]] for row in rows for answer in ("chosen", "rejected")]
    rewards = Judge.load(judged.path / "model").rewards(conversations)
    assert sum(rewards) / len(rewards) == pytest.approx(0, abs=1e-5)
    ids = torch.tensor([tokenizer.apply_chat_template(conversations[0], return_dict=True)["input_ids"]])
    with torch.no_grad():
        alone = float(loaded(ids).logits[0, 0])
    assert rewards[0] == pytest.approx(alone - getattr(loaded.config, MEAN_FIELD), abs=1e-5)


@pytest.mark.soak
def test_interrupted_and_resumed_it_ends_with_the_same_bytes(
    judged: Output, model: Artifact, pairs: Artifact, tmp_path: Path
) -> None:
    out = output(tmp_path)
    interrupt_and_resume(reward, CONFIG, (model, pairs), out, at=6)
    assert out.facts["resumed_from_step"] == 4
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(judged.path))
    assert out.counts == judged.counts


@pytest.mark.soak
@pytest.mark.parametrize("engine", [{}, {"engine": "fsdp", "zero_stage": 3}, {"engine": "deepspeed", "zero_stage": 3}])
def test_two_processes_learn_what_one_does(
    engine: dict[str, Any], judged: Output, model: Artifact, pairs: Artifact, tmp_path: Path
) -> None:
    out = output(tmp_path, processes=2, **engine)
    reward.function(CONFIG, model, pairs, out)
    ours, theirs = (read_log(each.path / "log.jsonl") for each in (out, judged))
    assert [row["loss"] for row in ours] == pytest.approx([row["loss"] for row in theirs], abs=5e-4)
    assert out.counts["reward_mean"] == pytest.approx(judged.counts["reward_mean"], abs=1e-3)


def test_an_architecture_without_a_classifier_is_refused_by_name(tmp_path: Path) -> None:
    from transformers import MambaConfig

    from tasks.posttrain.reward_model.model import load_classifier

    MambaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="no sequence classifier for mamba"):
        load_classifier(tmp_path, 0)
