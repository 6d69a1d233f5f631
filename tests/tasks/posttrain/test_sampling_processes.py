"""GRPO and PPO over two processes sample the answers of one and learn the same, by each engine that can sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.convert import load
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import LostProcess
from tasks.posttrain.methods.grpo import GrpoConfig, grpo
from tasks.posttrain.methods.ppo import ppo
from tasks.posttrain.methods.reward import RewardConfig, reward
from tasks.posttrain.ppo.config import PpoConfig
from tasks.stage.output import Output
from tasks.training.logs import read_log
from tests.runtimes import runtime_of
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.posttrain.sums import make_sums
from tests.tasks.tiny_model import make_model, make_preferences

FSDP = {"engine": "fsdp", "zero_stage": 3}
LORA = {"rank": 4, "alpha": 8}
COMMON: dict[str, Any] = {
    "global_batch": 4,
    "max_new_tokens": 5,
    "learning_rate": 1e-3,
    "validation_share": 0.05,
    "max_kl": None,
    "max_drop": None,
}
GRPO: dict[str, Any] = {**COMMON, "epochs": 0.02, "group": 2, "refills": 1, "updates": 2, "beta": 0.02}
PPO: dict[str, Any] = {**COMMON, "epochs": 0.02, "passes": 2}
OWN = """
def reward(prompts, answers, rows):
    if any("x" in answer for answer in answers):
        raise ValueError("x")
    return [None if "j" in answer else len(set(answer)) / 9 for answer in answers]
"""
# Of the method, the engine and the config's further settings
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "grpo, DDP": ("grpo", {}, {}),
    "grpo, FSDP": ("grpo", FSDP, {"loss": "rloo"}),
    "grpo, DDP, LoRA": ("grpo", {}, {"adapter": LORA, "loss": "dr_grpo", "scale": "batch"}),
    "grpo, FSDP, LoRA": ("grpo", FSDP, {"adapter": LORA, "mask_cut": True}),
    "ppo, DDP": ("ppo", {}, {}),
    "ppo, FSDP": ("ppo", FSDP, {"target_kl": 1.0}),
    "ppo, DDP, LoRA": ("ppo", {}, {"adapter": LORA}),
    "ppo, FSDP, LoRA": ("ppo", FSDP, {"adapter": LORA}),
}
QUICK = ("grpo, DDP",)


def output(folder: Path, stage: str, **runtime: Any) -> Output:
    settings: dict[str, Any] = {"threads": 1, "device": "cpu", "checkpoint_every": 3, "log_every": 1, **runtime}
    return Output.at(folder, stage=stage, runtime=runtime_of(group="posttrain", **settings))


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_sums(tmp_path_factory.mktemp("sums"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_model(tmp_path_factory.mktemp("base") / "model"))


@pytest.fixture(scope="module")
def judge(model: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("reward")
    out = output(folder, "reward")
    reward.function(RewardConfig(epochs=0.05), model, Artifact.at(make_preferences(folder / "pairs")), out)
    return Artifact.at(out.path / "model")


def inputs_of(method: str, model: Artifact, sums: Artifact, request: pytest.FixtureRequest) -> tuple[Any, ...]:
    return (model, sums, request.getfixturevalue("judge") if method == "ppo" else None)


def config_of(method: str, settings: dict[str, Any], folder: Path) -> Any:
    if method == "ppo":
        return PpoConfig.model_validate({**PPO, **settings})
    (folder / "rewards.py").write_text(OWN)
    own = {"kind": "python", "file": str(folder / "rewards.py"), "max_failed_share": 0.9}
    return GrpoConfig.model_validate({**GRPO, "rewards": [own], **settings})


STAGES = {"grpo": grpo, "ppo": ppo}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.soak) for name in CASES]
)
def test_two_processes_sample_and_learn_as_one_does(
    name: str, model: Artifact, sums: Artifact, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    method, engine, settings = CASES[name]
    config, inputs = config_of(method, settings, tmp_path), inputs_of(method, model, sums, request)
    one, two = output(tmp_path / "1", method), output(tmp_path / "2", method, processes=2, micro_batch=1, **engine)
    for out in (one, two):
        STAGES[method].function(config, *inputs, out)
    ours, theirs = (read_log(out.path / "log.jsonl") for out in (two, one))
    assert len(ours) == len(theirs) >= 4
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, abs=2e-5, rel=1e-3)
        for measure in ("reward", "answer_tokens", "groups_refilled", "python_failed", "validation_reward"):
            assert mine.get(measure) == pytest.approx(other.get(measure), abs=1e-6), "the answers are the same"
    weights, others = (load(out.path / "model").state_dict() for out in (two, one))
    for at in weights:
        torch.testing.assert_close(weights[at], others[at], rtol=0, atol=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("how", ["killed", "asked to stop"])
@pytest.mark.parametrize("name", ["grpo, FSDP", "grpo, DDP, LoRA", "ppo, FSDP", "ppo, DDP, LoRA", "ppo, FSDP, LoRA"])
def test_stopped_within_a_rollout_two_processes_resume_exactly(
    name: str,
    how: str,
    model: Artifact,
    sums: Artifact,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, engine, settings = CASES[name]
    config, inputs = config_of(method, {"epochs": 0.03, **settings}, tmp_path), inputs_of(method, model, sums, request)
    whole, stopped = (output(tmp_path / part, method, processes=2, **engine) for part in ("whole", "stopped"))
    STAGES[method].function(config, *inputs, whole)
    if how == "killed":
        monkeypatch.setenv("GRISTMILL_FAULTS", "kill:1@5")
        with pytest.raises(LostProcess):
            STAGES[method].function(config, *inputs, stopped)
        STAGES[method].function(config, *inputs, stopped)
        assert stopped.facts["resumed_from_step"] == 3
    else:
        interrupt_and_resume(STAGES[method], config, inputs, stopped, at=4, grace=300.0)
        assert stopped.facts["resumed_from_step"] >= 3
    assert tree_digest(list_files(stopped.path)) == tree_digest(list_files(whole.path))
    assert stopped.counts == whole.counts


@pytest.mark.soak
@pytest.mark.parametrize("method", STAGES)
def test_memory_that_runs_out_within_a_rollout_changes_only_rounding(
    method: str,
    model: Artifact,
    sums: Artifact,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, inputs = config_of(method, {"epochs": 0.03}, tmp_path), inputs_of(method, model, sums, request)
    whole, healed = (output(tmp_path / part, method, micro_batch=4) for part in ("whole", "healed"))
    STAGES[method].function(config, *inputs, whole)
    monkeypatch.setenv("GRISTMILL_FAULTS", "oom@4")
    STAGES[method].function(config, *inputs, healed)
    assert healed.facts["out_of_memory"] == 1
    weights, others = (load(out.path / "model").state_dict() for out in (healed, whole))
    for at in weights:
        torch.testing.assert_close(weights[at], others[at], rtol=0, atol=1e-5)
