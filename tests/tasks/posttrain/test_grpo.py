"""GRPO on sums: more right answers at a bounded divergence, an exact resume, and an end before the model is ruined."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.pretrained import load_pretrained
from models.runtimes.greedy import greedy
from models.tokenizer import load_tokenizer
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import RewardHacking, SourceError
from tasks.posttrain.methods.grpo import GRPO, GrpoConfig, grpo
from tasks.posttrain.methods.reward import RewardConfig, reward
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.posttrain.pair_lengths import render_rows
from tasks.posttrain.rewards.held_out import seeded
from tasks.posttrain.rewards.score import Failed
from tasks.posttrain.rows.prepare import read_rows
from tasks.stage.output import Output
from tasks.training.logs import read_log
from tests.runtimes import runtime_of
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.posttrain.in_process import parts_of
from tests.tasks.posttrain.sums import make_sums
from tests.tasks.tiny_model import make_model, make_preferences, write_rows

CONFIG = GrpoConfig(
    epochs=0.4, global_batch=16, group=4, max_new_tokens=4, learning_rate=5e-4, validation_share=0.2, validation_every=4
)


def output(folder: Path, stage: str) -> Output:
    settings: dict[str, Any] = {"threads": 1, "device": "cpu", "checkpoint_every": 3, "log_every": 1}
    return Output.at(folder, stage=stage, runtime=runtime_of(group="posttrain", **settings))


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_sums(tmp_path_factory.mktemp("sums"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_model(tmp_path_factory.mktemp("base") / "model"))


@pytest.fixture(scope="module")
def tuned(model: Artifact, sums: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    out = output(tmp_path_factory.mktemp("sft"), "sft")
    config = SftConfig(epochs=4, learning_rate=3e-3, validation_share=0.2)
    sft.function(config, model, sums, out)
    return Artifact.at(out.path / "model")


@pytest.fixture(scope="module")
def learned(tuned: Artifact, sums: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Output:
    out = output(tmp_path_factory.mktemp("grpo"), "grpo")
    grpo.function(CONFIG, tuned, sums, None, out)
    return out


@pytest.mark.soak
def test_held_out_rewards_are_those_of_greedy_answers_before_along_and_after(
    learned: Output, tuned: Artifact, sums: Artifact
) -> None:
    log, table = read_log(learned.path / "log.jsonl"), learned.counts["tables"]["Validation"]
    assert [row["step"] for row in table] == [0, 4, 8]
    assert len(log) == 8
    tokenizer = load_tokenizer(tuned.path)
    _, held_out, _ = render_rows(GRPO, CONFIG, sums.files("*.jsonl"), tokenizer, 128)
    for folder, measured in ((tuned.path, table[0]), (learned.path / "model", table[-1])):
        loaded = load_pretrained(folder)
        answers = greedy(
            loaded, tokenizer, [row["prompt"] for row in held_out], loaded.generation_config.eos_token_id, 4
        )
        texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
        right = sum(text == row["reference"] for text, row in zip(texts, held_out, strict=True))
        assert measured["reward"] == measured["exact_reward"] == pytest.approx(right / len(held_out), abs=1e-6)
    assert learned.counts["validation_reward"] == table[-1]["reward"]
    assert all(row["kl"] >= 0 for row in log)
    assert all((learned.path / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in ("reward", "measures"))


@pytest.mark.soak
def test_interrupted_and_resumed_it_draws_the_same_answers_and_ends_with_the_same_bytes(
    learned: Output, tuned: Artifact, sums: Artifact, tmp_path: Path
) -> None:
    out = output(tmp_path, "grpo")
    interrupt_and_resume(grpo, CONFIG, (tuned, sums, None), out, at=5)  # type: ignore[arg-type]
    assert out.facts["resumed_from_step"] == 3
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(learned.path))
    assert out.counts == learned.counts


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["continuous", "llama.cpp"])
def test_another_engine_resumes_within_a_batch_with_the_same_bytes(
    engine: str, tuned: Artifact, sums: Artifact, tmp_path: Path
) -> None:
    settings = {"updates": 2, "refills": 1, "rollout": {"engine": engine}}
    config = GrpoConfig.model_validate({**CONFIG.model_dump(), "epochs": 0.2, **settings})
    whole, out = output(tmp_path / "whole", "grpo"), output(tmp_path / "resumed", "grpo")
    grpo.function(config, tuned, sums, None, whole)
    interrupt_and_resume(grpo, config, (tuned, sums, None), out, at=5)  # type: ignore[arg-type]
    assert out.facts["resumed_from_step"] == 3
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(whole.path))
    assert max(row["engine_difference_largest"] for row in read_log(out.path / "log.jsonl")) < 1e-3
    assert [row["measure"] for row in out.facts["tables"]["Rollouts"]][1] == "tokens a second"


@pytest.mark.soak
@pytest.mark.parametrize("quantize", ["none", "nf4"])
def test_an_adapter_learns_resumes_within_a_batch_and_is_merged(
    quantize: str, tuned: Artifact, sums: Artifact, tmp_path: Path
) -> None:
    settings = {"updates": 2, "refills": 1, "learning_rate": 5e-3, "adapter": {"rank": 8, "quantize": quantize}}
    config = GrpoConfig.model_validate({**CONFIG.model_dump(), "epochs": 0.2, **settings})
    whole, out = output(tmp_path / "whole", "grpo"), output(tmp_path / "resumed", "grpo")
    grpo.function(config, tuned, sums, None, whole)
    interrupt_and_resume(grpo, config, (tuned, sums, None), out, at=5)  # type: ignore[arg-type]
    assert out.facts["resumed_from_step"] == 3, "of two for each batch of answers"
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(whole.path))
    log = read_log(whole.path / "log.jsonl")
    assert len(log) == 8
    assert log[0]["kl"] == pytest.approx(0, abs=1e-6), "the reference is the base"
    assert [row["reward"] for row in log[::2]] == [row["reward"] for row in log[1::2]]
    assert {path.name for path in (whole.path / "adapter").iterdir()} >= {"adapter_model.safetensors"}
    assert whole.counts["merged_logit_difference"] < 1e-4


@pytest.mark.soak
def test_a_run_over_its_budget_ends_with_a_reason_and_keeps_its_last_checkpoint(
    tuned: Artifact, sums: Artifact, tmp_path: Path
) -> None:
    out = output(tmp_path, "grpo")
    config = CONFIG.model_copy(update={"max_kl": 1e-3, "learning_rate": 5e-3})
    with pytest.raises(RewardHacking, match=r"more than grpo\.max_kl, 0\.001"):
        grpo.function(config, tuned, sums, None, out)


OWN = """
import re

def close(prompts, answers, rows):
    numbers = [re.fullmatch(r" *(\\d+) *", answer) for answer in answers]
    if any(number and number[1] == "7" for number in numbers):
        raise ValueError("seven")
    distances = [number and abs(int(number[1]) - int(row["sum"])) for number, row in zip(numbers, rows, strict=True)]
    return [None if distance is None else 1 / (1 + distance) for distance in distances]
"""


def test_an_answer_without_a_reward_is_out_of_its_groups_mean_and_out_of_the_loss(
    model: Artifact, sums: Artifact, tmp_path: Path
) -> None:
    (tmp_path / "rewards.py").write_text("def reward(prompts, answers, rows):\n    return [0.0] * len(answers)\n")
    own = {"kind": "python", "file": str(tmp_path / "rewards.py"), "name": "close"}
    config = GrpoConfig.model_validate(
        {"rewards": [own, {"kind": "exact"}], "global_batch": 2, "group": 4, "max_new_tokens": 2}
        | {"scale": "none", "max_drop": None, "validation_share": 0}
    )
    rows, _, _ = render_rows(GRPO, config, sums.files("*.jsonl"), load_tokenizer(model.path), 128)
    parts = parts_of(GRPO, config, model.path, rows[:2], tmp_path)
    trainer: Any = GRPO.make_trainer(replace(parts, digests=GRPO.fingerprints(config), scratch=tmp_path))
    values = [1.0, Failed("it broke"), 0.5, 0.0, None, 2.0, 4.0, 6.0]
    trainer.scorer.others = {"close": lambda answers: values}
    trainer.model.train()
    with seeded(0, 0):
        made = trainer._generate_and_score_completions([dict(row) for row in rows[:2] for _ in range(4)])
    mean = (1.0 + 0.5 + 0.0) / 3
    expected = [1.0 - mean, 0.0, 0.5 - mean, 0.0 - mean, 0.0 - 3, 2.0 - 3, 4.0 - 3, 6.0 - 3]
    assert made["advantages"].tolist() == pytest.approx(expected), "no answer is right, so exact adds 0 to each"
    assert made["completion_mask"].any(1).tolist() == [True, False, *[True] * 6]
    assert made["answers_in_loss"] == 7
    assert made["num_items_in_batch"] == made["completion_mask"].sum()
    measured = {name: values[-1] for name, values in trainer._metrics["train"].items() if name.startswith("rewards/")}
    assert measured["rewards/close/mean"] == pytest.approx(13.5 / 6)
    assert (measured["rewards/close/failed"], measured["rewards/close/none"]) == (1, 1)


@pytest.mark.soak
def test_it_learns_from_a_users_own_reward_and_counts_what_that_fails_for(
    tuned: Artifact, sums: Artifact, tmp_path: Path
) -> None:
    (tmp_path / "rewards.py").write_text(OWN)
    given = [{**row, "sum": row["messages"][-1]["content"]} for row in read_rows(sums.files("*.jsonl"))]
    rows = Artifact.at(write_rows(tmp_path / "rows" / "all.jsonl", given))
    own = {"kind": "python", "file": str(tmp_path / "rewards.py"), "function": "close", "name": "close"}
    settings = {
        **CONFIG.model_dump(),
        "rewards": [{**own, "fields": ["sum"], "max_failed_share": 0.5}, {"kind": "exact"}],
    }
    config = GrpoConfig.model_validate({**settings, "epochs": 0.2})
    out = output(tmp_path / "whole", "grpo")
    grpo.function(config, tuned, rows, None, out)
    log = read_log(out.path / "log.jsonl")
    failed = sum(row["close_failed"] for row in log)
    assert out.counts["close_failed"] == failed > 0
    assert out.counts["close_none"] == sum(row["close_none"] for row in log)
    assert out.facts["tables"]["Rewards that failed"][0]["error"] == "ValueError: seven"
    assert {"validation_close_reward", "validation_exact_reward", "validation_close_failed"} <= out.counts.keys()
    assert (out.path / "rewards.png").exists()
    stopped = output(tmp_path / "stopped", "grpo")
    interrupt_and_resume(grpo, config, (tuned, rows, None), stopped, at=2)  # type: ignore[arg-type]
    assert tree_digest(list_files(stopped.path)) == tree_digest(list_files(out.path))
    assert stopped.counts == out.counts
    ends = GrpoConfig.model_validate({**settings, "rewards": [{**own, "max_failed_share": 0}]})
    with pytest.raises(SourceError, match=r"The reward close failed for [1-9]\d* of \d+ answers, more than 0,"):
        grpo.function(ends, tuned, rows, None, output(tmp_path / "ends", "grpo"))


@pytest.mark.soak
def test_it_learns_from_a_judge(tuned: Artifact, sums: Artifact, tmp_path: Path) -> None:
    judged = output(tmp_path / "reward", "reward")
    reward.function(RewardConfig(epochs=0.5), tuned, Artifact.at(make_preferences(tmp_path / "pairs")), judged)
    out = output(tmp_path / "grpo", "grpo")
    rewards = [{"kind": "model"}, {"kind": "exact", "weight": 0.5}, {"kind": "length", "target": 3}]
    config = GrpoConfig.model_validate({**CONFIG.model_dump(), "rewards": rewards, "epochs": 0.1})
    grpo.function(config, tuned, sums, Artifact.at(judged.path / "model"), out)
    row = read_log(out.path / "log.jsonl")[0]
    assert row["reward"] == pytest.approx(
        row["model_reward"] + 0.5 * row["exact_reward"] + row["length_reward"], abs=1e-5
    )
