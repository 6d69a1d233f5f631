"""Each loss of a preference method equals its paper's equation, written here with only math."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from models.pretrained import load_pretrained
from models.tokenizer import load_tokenizer
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.method import Method
from tasks.posttrain.methods.cpo import CPO, CpoConfig
from tasks.posttrain.methods.dpo import DPO, DpoConfig
from tasks.posttrain.methods.kto import KTO, KtoConfig
from tasks.posttrain.methods.orpo import ORPO, OrpoConfig
from tasks.posttrain.rows.form import Row
from tasks.posttrain.rows.labelled import labelled_of, render_labelled
from tasks.posttrain.rows.preference import render_preference
from tests.tasks.posttrain.in_process import first_loss, log_probability, parts_of
from tests.tasks.posttrain.uneven import uneven_pairs
from tests.tasks.tiny_model import make_model

SHIFTS = ((-3.0, 2.0), (4.0, -1.5), (0.5, 0.25), (-6.0, -9.0))  # log-probabilities of the reference, by pair


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def pairs(model: Path) -> list[Row]:
    """Four pairs of different lengths, with the log-probabilities of a reference other than the model."""
    tokenizer, scored = load_tokenizer(model), load_pretrained(model)
    rows = []
    for row, shifts in zip(uneven_pairs()[3:7], SHIFTS, strict=True):
        rendered = render_preference(row, tokenizer, 128)
        for name, shift in zip(("chosen", "rejected"), shifts, strict=True):
            known = log_probability(scored, rendered["prompt_ids"], rendered[f"{name}_ids"])
            rendered |= {f"{name} known": known, f"ref_{name}_logps": known - shift}
        rows.append(rendered)
    return rows


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def nll(value: float) -> float:
    return math.log1p(math.exp(-value))


def robust(ratio: float, share: float) -> float:
    return ((1 - share) * nll(ratio) - share * nll(-ratio)) / (1 - 2 * share)


def exo(ratio: float, share: float) -> float:
    likely = sigmoid(ratio)
    return likely * math.log(likely / (1 - share)) + (1 - likely) * math.log((1 - likely) / share)


# Functions of β, the log-ratios of the preferred and the rejected answer, and their numbers of tokens
DPO_LOSSES: dict[str, Callable[[float, float, float, int, int], float]] = {
    "sigmoid": lambda b, w, r, m, n: nll(b * (w - r)),
    "sigmoid_norm": lambda b, w, r, m, n: nll(b * (w / m - r / n)),
    "hinge": lambda b, w, r, m, n: max(0.0, 1 - b * (w - r)),
    "ipo": lambda b, w, r, m, n: (w / m - r / n - 1 / (2 * b)) ** 2,
    "robust": lambda b, w, r, m, n: robust(b * (w - r), 0.1),
    "exo_pair": lambda b, w, r, m, n: exo(b * (w - r), 0.001),
    "nca_pair": lambda b, w, r, m, n: nll(b * w) + 0.5 * nll(-b * w) + 0.5 * nll(-b * r),
    "sppo_hard": lambda b, w, r, m, n: (w - 1 / (2 * b)) ** 2 + (r + 1 / (2 * b)) ** 2,
    "apo_zero": lambda b, w, r, m, n: 1 - sigmoid(b * w) + sigmoid(b * r),
    "apo_down": lambda b, w, r, m, n: sigmoid(b * w) + 1 - sigmoid(b * (w - r)),
}


@pytest.mark.parametrize("loss", DPO_LOSSES)
def test_a_loss_of_dpo_is_that_of_its_paper(loss: str, model: Path, pairs: list[Row], tmp_path: Path) -> None:
    smoothing = {"robust": 0.1, "exo_pair": 0.001}.get(loss, 0.0)
    config = DpoConfig.model_validate({"loss": loss, "beta": 0.3, "label_smoothing": smoothing, "global_batch": 4})
    expected = mean(
        DPO_LOSSES[loss](0.3, *shifts, len(row["chosen_ids"]), len(row["rejected_ids"]))
        for row, shifts in zip(pairs, SHIFTS, strict=True)
    )
    assert loss_of(DPO, config, model, pairs, tmp_path) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def orpo_loss(row: Row) -> float:
    (chosen, _), (rejected, _) = scores_of(row)
    odds = [math.exp(score) / (1 - math.exp(score)) for score in (chosen, rejected)]
    return -chosen + 0.25 * nll(math.log(odds[0] / odds[1]))


def cpo_loss(row: Row) -> float:
    (mean, chosen), (_, rejected) = scores_of(row)
    return nll(0.02 * (chosen - rejected)) - mean


def simpo_loss(row: Row) -> float:
    (chosen, _), (rejected, _) = scores_of(row)
    return nll(2.0 * chosen - 2.0 * rejected - 0.7)


@pytest.mark.parametrize(
    ("method", "config", "equation"),
    [
        (ORPO, OrpoConfig(odds_weight=0.25, global_batch=4), orpo_loss),
        (CPO, CpoConfig(beta=0.02, global_batch=4), cpo_loss),
        (CPO, CpoConfig(loss="simpo", beta=2.0, gamma=0.7, global_batch=4), simpo_loss),
    ],
    ids=["orpo", "cpo", "simpo"],
)
def test_a_loss_without_a_reference_is_that_of_its_paper(
    method: Method[Any],
    config: PosttrainConfig,
    equation: Callable[[Row], float],
    model: Path,
    pairs: list[Row],
    tmp_path: Path,
) -> None:
    plain = [{name: row[name] for name in ("id", "prompt_ids", "chosen_ids", "rejected_ids")} for row in pairs]
    expected = mean(map(equation, pairs))
    assert loss_of(method, config, model, plain, tmp_path) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("loss", ["kto", "apo_zero"])
def test_the_loss_of_kto_is_that_of_its_paper_about_a_point_over_the_whole_batch(
    loss: str, model: Path, tmp_path: Path
) -> None:
    tokenizer, policy, reference = load_tokenizer(model), load_pretrained(model), load_pretrained(model)
    drawn = torch.Generator().manual_seed(1)
    for weights in reference.parameters():
        weights.data += 0.05 * torch.randn(weights.shape, generator=drawn)
    split = [half for row in uneven_pairs()[:3] for half in labelled_of(row)]
    rows = [render_labelled(row, tokenizer, 128) for row in split]
    config = KtoConfig.model_validate(
        {
            "loss": loss,
            "beta": 0.5,
            "global_batch": 6,
            "desirable_weight": 1.5,
            "undesirable_weight": 0.5,
            "validation_share": 0.0,
        }
    )
    parts = parts_of(KTO, config, model, rows, tmp_path, micro_batch=2)
    trainer: Any = KTO.make_trainer(parts)
    trainer.train_dataset = dataset = trainer._with_others(trainer.train_dataset, 6)
    trainer.model.load_state_dict(reference.state_dict())
    trainer.measure_reference()
    trainer.model.load_state_dict(policy.state_dict())
    batches = [trainer.data_collator([dataset[row] for row in block]) for block in ((0, 1), (2, 3), (4, 5))]
    trainer.model.train()
    with_point, _ = trainer.get_batch_samples(iter(batches), 3, "cpu")
    found = [float(trainer.compute_loss(trainer.model, batch).detach()) for batch in with_point]

    def ratio(prompt: Row, answer: Row) -> float:
        ids = prompt["prompt_ids"], answer["completion_ids"]
        return log_probability(policy, *ids) - log_probability(reference, *ids)

    point = max(0.0, mean(ratio(row, before) for row, before in zip(rows, [rows[-1], *rows[:-1]], strict=True)))
    assert point > 0
    point = point if loss == "kto" else 0.0
    expected = []
    for row in rows:
        sign, weight = (1, 1.5) if row["label"] else (-1, 0.5)
        expected.append(weight * (1 - sigmoid(sign * 0.5 * (ratio(row, row) - point))))
    assert found == pytest.approx([mean(expected[at : at + 2]) for at in (0, 2, 4)], abs=1e-5)


@pytest.mark.parametrize(
    ("config", "settings", "told"),
    [
        (DpoConfig, {"loss": "robust"}, "robust needs a label_smoothing above 0, such as 0.1"),
        (DpoConfig, {"loss": "exo_pair"}, "exo_pair needs a label_smoothing above 0, such as 0.001"),
        (DpoConfig, {"label_smoothing": 0.1}, "label_smoothing belongs to robust and exo_pair: leave it out"),
        (DpoConfig, {"loss": "robust", "label_smoothing": 0.5}, "less than 0.5"),
        (CpoConfig, {"gamma": 0.5}, "gamma belongs to the loss simpo: leave it out with sigmoid"),
        (KtoConfig, {"global_batch": 1}, "raise global_batch, or set loss to apo_zero"),
    ],
)
def test_settings_that_make_no_sense_together_are_refused_by_name(
    config: type[PosttrainConfig], settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValidationError, match=told):
        config.model_validate(settings)


def test_a_default_that_is_new_is_in_no_key() -> None:
    assert "label_smoothing" not in DpoConfig().model_dump()


def loss_of(method: Method[Any], config: PosttrainConfig, model: Path, rows: Sequence[Row], folder: Path) -> float:
    trainer = method.make_trainer(parts_of(method, config, model, rows, folder))
    return first_loss(trainer, rows)


def scores_of(row: Row) -> list[tuple[float, float]]:
    """Log P per token and in total, of the preferred answer and of the rejected one."""
    both = [(row[f"{name} known"], len(row[f"{name}_ids"])) for name in ("chosen", "rejected")]
    return [(known / tokens, known) for known, tokens in both]


def mean(values: Any) -> float:
    found = list(values)
    return float(sum(found) / len(found))
