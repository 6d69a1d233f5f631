"""SFT and DPO report means over tokens or pairs, whatever the batches and processes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.convert import load
from models.kernels.cross_entropy import IGNORED
from models.tokenizer import load_tokenizer
from storage.artifact import Artifact
from tasks.posttrain.batches import held_out_batches
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.methods.dpo import DpoConfig, dpo
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.posttrain.rows.instruction import render_instruction
from tasks.posttrain.rows.prepare import prepare
from tasks.stage.decorator import Stage
from tasks.stage.output import Output
from tests.tasks.posttrain.uneven import output, token_means, uneven_pairs, uneven_rows
from tests.tasks.tiny_model import make_model, write_rows

PROCESSES = [1, pytest.param(2, marks=pytest.mark.soak)]
BRIEF: dict[str, Any] = {"epochs": 0.2, "global_batch": 8, "validation_share": 0.3}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_model(tmp_path_factory.mktemp("base") / "model"))


@pytest.mark.parametrize("processes", PROCESSES)
def test_the_losses_of_sft_are_means_over_supervised_tokens(processes: int, model: Artifact, tmp_path: Path) -> None:
    rows = uneven_rows()
    out = trained(sft, SftConfig(**BRIEF), model, rows, tmp_path, processes)
    tokenizer = load_tokenizer(model.path)
    _, held_out, _ = prepare(
        rows,
        lambda row, length: render_instruction(row, tokenizer, length),
        128,
        validation_share=0.3,
        max_dropped_share=0.0,
    )
    check_uneven(held_out)
    loss, accuracy = token_means(load(out.path / "model"), held_out)
    assert out.counts["validation_loss"] == pytest.approx(loss, abs=1e-4)
    assert out.counts["validation_token_accuracy"] == pytest.approx(accuracy, abs=1e-5)
    begun, last = load(model.path), load(out.path / "model")
    before, _ = token_means(begun, held_out)
    first = out.counts["tables"]["Validation"][0]
    assert (first["step"], first["loss"]) == (0, pytest.approx(before, abs=1e-4))
    assert out.counts["validation_loss_change"] == pytest.approx(loss - before, abs=1e-4)
    tokens = np.array([sum(label != IGNORED for label in row["labels"][1:]) for row in held_out])
    each = np.array([token_means(last, [row])[0] - token_means(begun, [row])[0] for row in held_out])
    drawn = np.random.default_rng(0).multinomial(len(tokens), np.full(len(tokens), 1 / len(tokens)), size=4000)
    low, high = np.quantile(drawn @ (each * tokens) / (drawn @ tokens), [0.025, 0.975])
    width = high - low
    assert out.counts["validation_loss_change_low"] == pytest.approx(low, abs=0.2 * width)
    assert out.counts["validation_loss_change_high"] == pytest.approx(high, abs=0.2 * width)


@pytest.mark.soak
@pytest.mark.parametrize("processes", [1, 2])
def test_the_measures_of_dpo_are_means_over_pairs(processes: int, model: Artifact, tmp_path: Path) -> None:
    pairs, config = uneven_pairs(), DpoConfig(**BRIEF)
    out = trained(dpo, config, model, pairs, tmp_path, processes)
    _, held_out, _ = prepare(pairs, lambda row, length: row, 128, validation_share=0.3, max_dropped_share=0.0)
    check_uneven(held_out)
    policy, reference = load(out.path / "model"), load(model.path)
    measured = []
    for pair in held_out:
        chosen, rejected = (
            [log_probability(scored, model.path, pair["prompt"], pair[which]) for scored in (policy, reference)]
            for which in ("chosen", "rejected")
        )
        rewards = [config.beta * (ours - theirs) for ours, theirs in (chosen, rejected)]
        margin = rewards[0] - rewards[1]
        measured.append(
            {
                "loss": math.log1p(math.exp(-margin)),
                "preference_accuracy": float(margin > 0),
                "reward_margin": margin,
                "chosen_reward": rewards[0],
                "rejected_reward": rewards[1],
                "chosen_log_probability": chosen[0],
                "rejected_log_probability": rejected[0],
            }
        )
    for name in measured[0]:
        mean = sum(pair[name] for pair in measured) / len(measured)
        assert out.counts[f"validation_{name}"] == pytest.approx(mean, abs=2e-4, rel=1e-5), name


def trained(
    method: Stage, config: PosttrainConfig, model: Artifact, rows: list[dict[str, Any]], folder: Path, processes: int
) -> Output:
    """The batches of rows by a number of processes."""
    out = output(folder, method.name, processes=processes)
    method.function(config, model, Artifact.at(write_rows(folder / "pairs" / "all.jsonl", rows)), out)
    return out


def check_uneven(held_out: list[dict[str, Any]]) -> None:
    assert len(held_out) % 8, "the last batch is short"
    assert len(held_out) % 2, "two processes can't share evenly"


def log_probability(policy: Any, folder: Path, prompt: list[dict[str, str]], reply: list[dict[str, str]]) -> float:
    """The tokens of an answer, including the one that ends it."""
    tokenizer = load_tokenizer(folder)
    given = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
    ids = torch.tensor(tokenizer.apply_chat_template([*prompt, *reply], return_dict=True)["input_ids"])
    with torch.no_grad():
        log_probabilities = policy(ids[None])[0, :-1].log_softmax(-1)
    return float(log_probabilities.gather(1, ids[1:, None])[len(given) - 1 :].sum())


@pytest.mark.parametrize("rows", [1, 7, 16, 51])
@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_each_held_out_row_is_measured_by_one_process_or_by_all(rows: int, processes: int) -> None:
    shares = [held_out_batches(rows, 4, process, processes) for process in range(processes)]
    assert len({tuple(map(len, batches)) for batches, _ in shares}) == 1, "equal sizes, for collective operations"
    seen: list[int] = []
    for process, (batches, repeated) in enumerate(shares):
        own = len(batches) - repeated
        seen += [row for batch in batches[: own if process else None] for row in batch]
        assert batches[own:] == shares[0][0][own:]
    assert sorted(seen) == list(range(rows))
