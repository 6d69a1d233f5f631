"""PPO against a judge: a reward that rises at a bounded divergence, and a resume that is exact within a rollout too."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from models.convert import load as load_model
from models.pretrained import load_pretrained
from models.runtimes.greedy import ends_of
from models.tokenizer import load_tokenizer
from profiles.load import load
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError, TrainingError
from tasks.posttrain.methods.ppo import PPO, ppo
from tasks.posttrain.methods.reward import RewardConfig, reward
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.posttrain.ppo.config import PpoConfig
from tasks.posttrain.ppo.policy import attach
from tasks.posttrain.ppo.rollout import Sampler
from tasks.posttrain.reward_model.model import load_classifier
from tasks.posttrain.rewards.config import ExactReward, PythonReward
from tasks.posttrain.rewards.score import Failed, Scorer
from tasks.posttrain.rollouts.config import RolloutConfig
from tasks.posttrain.rollouts.engine import TransformersEngine
from tasks.posttrain.rollouts.mismatch import MEAN, RATIO, Cost, weights_of
from tasks.stage.output import Output
from tasks.training.logs import read_log
from tests.runtimes import runtime_of
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.posttrain.in_process import parts_of
from tests.tasks.tiny_model import ANIMALS, make_instructions, make_model, make_preferences, question

CONFIG = PpoConfig(
    epochs=0.6,
    global_batch=32,
    passes=3,
    max_new_tokens=16,
    learning_rate=5e-4,
    validation_share=0.2,
    max_kl=None,
    beta=0.02,
    target_kl=4.0,
)


def output(folder: Path, stage: str, **runtime: Any) -> Output:
    settings = {"threads": 1, "device": "cpu", "checkpoint_every": 4, "log_every": 1, **runtime}
    return Output.at(folder, stage=stage, runtime=runtime_of(group="posttrain", **settings))


def test_it_needs_a_judge_before_it_and_an_engine_that_can_sample() -> None:
    for settings in (["ppo={}"], ["ppo={}", "reward={}", "chain=[sft, dpo, ppo, reward]"]):
        with pytest.raises(ConfigError, match="ppo learns from a reward model, but no reward comes before it"):
            load("tiny", settings)
    assert load("tiny", ["ppo={}", "reward={}"]).links == ("sft", "dpo", "reward", "ppo")
    with pytest.raises(ConfigError, match="engine is deepspeed, under which ppo can't sample answers"):
        ppo.check_runtime(PpoConfig(), runtime_of(group="posttrain", processes=2, engine="deepspeed", zero_stage=1))
    with pytest.raises(ValueError, match="dropout would differ between sampling and learning"):
        PpoConfig.model_validate({"adapter": {"dropout": 0.1}})
    with pytest.raises(ValueError, match="target_kl adapts beta by a factor"):
        PpoConfig(beta=0, target_kl=1)
    with pytest.raises(ValueError, match="TRL's trainer runs vllm, so it is for grpo only"):
        PpoConfig.model_validate({"rollout": {"engine": "vllm"}})
    config = PpoConfig(rollout=RolloutConfig(engine="continuous"))
    with pytest.raises(ConfigError, match=r"ppo\.rollout\.engine is continuous, which takes whole weights"):
        ppo.check_runtime(config, runtime_of(group="posttrain", processes=2, engine="fsdp", zero_stage=3))


@pytest.fixture(scope="module")
def instructions(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_instructions(tmp_path_factory.mktemp("instructions")))


@pytest.fixture(scope="module")
def tuned(instructions: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    base = Artifact.at(make_model(tmp_path_factory.mktemp("base") / "model"))
    out = output(tmp_path_factory.mktemp("sft"), "sft")
    sft.function(SftConfig(epochs=1, learning_rate=3e-3), base, instructions, out)
    return Artifact.at(out.path / "model")


@pytest.fixture(scope="module")
def judge(tuned: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("reward")
    out = output(folder, "reward")
    config = RewardConfig(epochs=1, learning_rate=1e-3)
    reward.function(config, tuned, Artifact.at(make_preferences(folder / "pairs")), out)
    return Artifact.at(out.path / "model")


@pytest.fixture(scope="module")
def learned(
    tuned: Artifact, instructions: Artifact, judge: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> Output:
    out = output(tmp_path_factory.mktemp("ppo"), "ppo")
    ppo.function(CONFIG, tuned, instructions, judge, out)
    return out


@pytest.mark.soak
def test_it_begins_at_the_reference_and_the_critic_is_gone_at_the_end(learned: Output) -> None:
    log = read_log(learned.path / "log.jsonl")
    assert len(log) % CONFIG.passes == 0
    assert log[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert log[0]["ratios_clipped"] == 0, "the first step of a rollout is on-policy"
    assert log[0]["policy_loss"] == pytest.approx(0, abs=1e-4), "whitened advantages have the mean 0"
    assert log[0]["kl_coefficient"] == CONFIG.beta > log[-1]["kl_coefficient"], "adapted below its target"
    assert load_model(learned.path / "model").shape.vocab_size == 600
    assert learned.counts["tables"]["Validation"][0]["step"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("every", [3, 4])
def test_interrupted_between_two_rollouts_or_within_one_it_ends_with_the_same_bytes(
    every: int, learned: Output, tuned: Artifact, instructions: Artifact, judge: Artifact, tmp_path: Path
) -> None:
    out = output(tmp_path, "ppo", checkpoint_every=every)
    interrupt_and_resume(ppo, CONFIG, (tuned, instructions, judge), out, at=every + 1)
    assert out.facts["resumed_from_step"] == every
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(learned.path))
    assert out.counts == learned.counts


def test_an_answer_without_a_reward_is_not_learned_from_and_the_default_stays_out_of_the_key(tmp_path: Path) -> None:
    assert not {"rewards", "rollout"} & PpoConfig().model_dump().keys()
    folder = make_model(tmp_path / "model")
    policy, tokenizer = load_pretrained(folder), load_tokenizer(folder)
    reference, config = load_pretrained(folder), PpoConfig(max_new_tokens=4)
    attach(policy, load_classifier(folder, 0), config.temperature, None)
    rows = [{"prompt": [{"role": "user", "content": text}], "reference": "2"} for text in ("1+1", "one", "2+0", "3-1")]

    def sample(values: list[Any]) -> tuple[Any, dict[str, float]]:
        other = PythonReward(file="rewards.py", weight=0.5)
        scorer = Scorer([ExactReward(), other], others={"python": lambda answers: values})
        engine = TransformersEngine(tokenizer, ends := ends_of(policy, tokenizer), config.temperature, 2)
        sampler = Sampler(config, scorer, engine, reference, tokenizer, ends, 0.0, 2, Cost(config.rollout.engine))
        return sampler.sample(policy, rows, 0.1, "0 0")

    whole, measured = sample([1.0, 2.0, 3.0, 6.0])
    assert (measured["reward"], measured["rewards/python/mean"], measured["rewards/exact/mean"]) == (1.5, 3, 0)
    broken, measured = sample([1.0, Failed("it broke"), 3.0, 5.0])
    assert (measured["reward"], measured["rewards/python/failed"]) == (1.5, 1)
    assert torch.equal(broken["answer_mask"][[0, 2, 3]], whole["answer_mask"][[0, 2, 3]])
    assert not broken["answer_mask"][1].any()
    assert not broken["advantages"][1].any()
    tokens = broken["answer_mask"].sum()
    assert float(broken["advantages"].sum() / tokens) == pytest.approx(0, abs=1e-5), "whitened without that answer"


@pytest.mark.parametrize("engine", ["continuous", "llama.cpp"])
def test_another_engines_answers_are_weighed_by_the_policys_probability_over_its_own(
    engine: str, tmp_path: Path
) -> None:
    config = PpoConfig.model_validate(
        {"global_batch": 4, "max_new_tokens": 5, "validation_share": 0, "max_kl": None}
        | {"rewards": [{"kind": "length", "target": 9}], "rollout": {"engine": engine, "max_mismatch": 0.6}}
    )
    model = make_model(tmp_path / "model")
    rows = [{"prompt": question(animal), "reference": "one"} for animal in ANIMALS[:4]]
    trainer: Any = PPO.make_trainer(replace(parts_of(PPO, config, model, rows, tmp_path), judge=model))
    policy, sampler = trainer.model, trainer.sampler
    first, measured = sampler.sample(policy, rows, 0.1, "0 0")
    assert measured[MEAN] < 2e-4
    torch.testing.assert_close(first["weights"], torch.ones_like(first["weights"]), rtol=0, atol=1e-3)
    again, _ = sampler.sample(policy, rows, 0.1, "0 0")
    assert all(torch.equal(first[name], again[name]) for name in first)
    with torch.no_grad():
        for name, value in policy.named_parameters():
            value += 0.5 * value.std() * ("critic" not in name)
    moved, measured = sampler.sample(policy, rows, 0.1, "0 0")
    assert not torch.equal(moved["ids"], first["ids"])
    assert measured[MEAN] < 2e-4, "the engine has the weights of this step"
    sample = sampler.engine.sample
    beyond = pytest.raises(TrainingError, match=rf"Step 1: log-probabilities of {engine} .* more than ppo\.rollout")
    for shift, weight, end in ((0.5, math.exp(0.5), nullcontext()), (5.0, 3.0, beyond)):
        sampler.engine.sample = lambda *given, shift=shift: [
            each._replace(log_probabilities=[value - shift for value in each.log_probabilities])
            for each in sample(*given)
        ]
        with end:
            trainer._sample(0)
        trainer._rollout["advantages"] = torch.ones_like(trainer._rollout["advantages"])
        trainer.compute_loss(policy, trainer._rollout)
        assert trainer._of_rollout[RATIO] == pytest.approx(weight, rel=1e-3)
        assert trainer._sums.pop("policy_loss") == pytest.approx(-weight, rel=1e-3)


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        ("token_truncate", [[2.0, 3.0, 1.0], [0.5, 1.0, 1.0]]),
        ("token_mask", [[2.0, 0.0, 1.0], [0.5, 1.0, 1.0]]),
        ("sequence_truncate", [[3.0], [0.5]]),
        ("sequence_mask", [[0.0], [0.5]]),
    ],
)
def test_a_ratio_above_the_cap_is_lowered_or_left_out(correction: Any, expected: list[list[float]]) -> None:
    ratios, mask = torch.tensor([[2.0, 4.0, 1.0], [0.5, 1.0, 9.0]]), torch.tensor([[1.0, 1, 1], [1, 1, 0]])
    rollout = RolloutConfig(engine="continuous", correction=correction)
    found = weights_of(ratios.log(), torch.zeros(2, 3), mask, rollout)
    torch.testing.assert_close(found, torch.tensor(expected))


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["continuous", "llama.cpp"])
def test_by_another_engine_a_rerun_and_a_run_that_was_killed_end_with_the_same_bytes(
    engine: str, tuned: Artifact, instructions: Artifact, judge: Artifact, tmp_path: Path
) -> None:
    config = PpoConfig.model_validate({**CONFIG.model_dump(), "epochs": 0.3, "rollout": {"engine": engine}})
    outs = [output(tmp_path / name, "ppo") for name in ("whole", "again", "killed")]
    for out in outs[:2]:
        ppo.function(config, tuned, instructions, judge, out)
    interrupt_and_resume(ppo, config, (tuned, instructions, judge), outs[2], at=5)
    assert outs[2].facts["resumed_from_step"] == 4, "within a rollout"
    assert len({tree_digest(list_files(out.path)) for out in outs}) == 1
    log = read_log(outs[0].path / "log.jsonl")
    assert {row["engine_difference"] for row in log[: config.passes]} == {log[0]["engine_difference"]}
    assert 0 < max(row["engine_difference"] for row in log) < 1e-4
    assert outs[0].facts["rollout_engine"] == engine


@pytest.mark.soak
def test_several_rewards_are_logged_by_name(
    tuned: Artifact, instructions: Artifact, judge: Artifact, tmp_path: Path
) -> None:
    (tmp_path / "rewards.py").write_text(
        "async def reward(prompts, answers, rows):\n    return [None if 'e' in answers[0] else len(answers[0]) / 100]\n"
    )
    rewards = [{"kind": "model"}, {"kind": "python", "file": str(tmp_path / "rewards.py"), "weight": 2}]
    config = PpoConfig.model_validate({**CONFIG.model_dump(), "rewards": rewards, "epochs": 0.2, "validation_every": 3})
    out = output(tmp_path / "made", "ppo")
    ppo.function(config, tuned, instructions, judge, out)
    log = read_log(out.path / "log.jsonl")
    assert [row for row in log if "python_none" in row] == log[:: config.passes]
    assert out.counts["python_none"] == sum(row.get("python_none", 0) for row in log)
    assert {"model_reward", "python_reward"} <= log[0].keys()
    assert (out.path / "rewards.png").exists()


@pytest.mark.soak
def test_micro_batches_change_nothing_but_the_rounding_of_sums(
    learned: Output, tuned: Artifact, instructions: Artifact, judge: Artifact, tmp_path: Path
) -> None:
    out = output(tmp_path, "ppo", micro_batch=8)
    ppo.function(CONFIG, tuned, instructions, judge, out)
    ours, theirs = (read_log(each.path / "log.jsonl")[: CONFIG.passes] for each in (out, learned))
    for name in ("loss", "policy_loss", "value_loss", "gradient_norm"):
        assert [row[name] for row in ours] == pytest.approx([row[name] for row in theirs], abs=1e-4)
