"""GRPO's losses and updates: those of TRL's own trainers on the same answers, and those of the papers where TRL divides
by answers that are not in the loss."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models.pretrained import load_pretrained
from models.runtimes.greedy import ends_of
from models.tokenizer import load_tokenizer
from tasks.posttrain.arguments import arguments_of
from tasks.posttrain.batches import training_order
from tasks.posttrain.methods.grpo import GRPO, GrpoConfig
from tasks.posttrain.rewards.trainer import LOSSES
from tests.tasks.posttrain.in_process import parts_of
from tests.tasks.tiny_model import ANIMALS, make_model, question

ENDS = list(range(100, 190))  # enough for a model with random weights to end some answers
ROWS = [{"prompt": question(animal), "reference": animal} for animal in ANIMALS]
BATCH, GROUP, LENGTH = 4, 4, 5
CONFIG: dict[str, Any] = {
    "rewards": [{"kind": "length", "target": 3}],
    "global_batch": BATCH,
    "group": GROUP,
    "max_new_tokens": LENGTH,
    "learning_rate": 1e-3,
    "validation_share": 0,
    "max_drop": None,
    "max_kl": None,
}
OF_TRL: dict[str, dict[str, Any]] = {
    "dapo": {"loss_type": "dapo"},
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.28},
}


@pytest.fixture(scope="module", autouse=True)
def quickly_collected() -> Iterator[None]:
    """Every training begins with a collection of garbage, which takes a second over all that is imported."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model(tmp_path_factory.mktemp("base") / "model")
    loaded = load_pretrained(folder)
    loaded.generation_config.eos_token_id = [*ends_of(loaded, load_tokenizer(folder)), *ENDS]
    loaded.save_pretrained(folder)
    return folder


def trainer_of(model: Path, folder: Path, steps: int, micro_batch: int = 2, **settings: Any) -> Any:
    """Our trainer, for `steps` batches."""
    config = GrpoConfig.model_validate({**CONFIG, "epochs": steps * BATCH / len(ROWS), **settings})
    parts = parts_of(GRPO, config, model, ROWS, folder, micro_batch=micro_batch)
    if config.adapter is not None:
        from tasks.training.adapters.lora import peft_config

        parts.common["peft_config"] = peft_config("grpo", config.adapter, parts.common["model"])  # type: ignore[index]
    trainer = GRPO.make_trainer(parts)
    trainer.train_dataset = trainer.train_dataset.select(training_order(config, len(ROWS)))
    trainer.args.save_strategy = "no"
    return trainer


def recorded(trainer: Any) -> list[list[Any]]:
    """Train, and keep the groups of each batch of answers."""
    batches: list[list[Any]] = []
    refill = trainer._refill

    def kept() -> int:
        refilled: int = refill()
        batches.append(list(trainer._groups))
        return refilled

    trainer._refill = kept
    trainer.train()
    return batches


def near_three(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """The reward of CONFIG."""
    return [max(0.0, 1 - abs(len(ids) - 3) / 3) for ids in completion_ids]


def replayed(ours: Any, batches: list[list[Any]], model: Path, **settings: Any) -> Any:
    """TRL's own GRPOTrainer, trained on our answers with its own rewards, advantages and losses."""
    from trl import GRPOConfig, GRPOTrainer

    left = iter(batches)

    def rollout(prompts: Sequence[Any], _: Any) -> dict[str, Any]:
        groups = next(left)
        assert [group.row["prompt"] for group in groups for _ in group.ids] == list(prompts)
        return {
            "prompt_ids": [group.prompt_ids for group in groups for _ in group.ids],
            "completion_ids": [ids for group in groups for ids in group.ids],
            "logprobs": None,
        }

    given = {name: getattr(ours.args, name) for name in GIVEN}
    at_once = {"per_device_train_batch_size": BATCH * GROUP, "gradient_accumulation_steps": 1}
    settings = {"scale_rewards": "group", "epsilon_high": 0.28, **at_once, **settings}
    arguments = arguments_of(GRPOConfig, given, **settings)
    theirs = GRPOTrainer(
        load_pretrained(model),
        near_three,
        args=arguments,
        train_dataset=ours.train_dataset,
        processing_class=load_tokenizer(model),
        rollout_func=rollout,
    )
    theirs.train()
    return theirs


GIVEN = (
    "output_dir",
    "max_steps",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "max_grad_norm",
    "seed",
    "bf16",
    "use_cpu",
    "optim",
    "logging_steps",
    "report_to",
    "disable_tqdm",
    "save_strategy",
    "gradient_checkpointing",
    "num_generations",
    "max_completion_length",
    "num_iterations",
    "temperature",
    "beta",
    "shuffle_dataset",
    "disable_dropout",
)


def logged(trainer: Any, name: str) -> list[float]:
    return [row[name] for row in trainer.state.log_history if name in row]


def check_as_trl(loss: str, batches: int, model: Path, folder: Path) -> None:
    ours = trainer_of(model, folder, batches, loss=loss, updates=2, beta=0.02)
    theirs = replayed(ours, recorded(ours), model, **OF_TRL[loss])
    assert len(logged(ours, "loss")) == 2 * batches
    for name in ("loss", "grad_norm", "kl", "entropy"):
        assert logged(ours, name) == pytest.approx(logged(theirs, name), abs=1e-5), name
    assert logged(ours, "reward")[::2] == logged(ours, "reward")[1::2] == pytest.approx(logged(theirs, "reward"))
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def but_soak(quick: Sequence[Any], every: Sequence[Any]) -> list[Any]:
    """All cases, of which `make test` runs these."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.soak) for case in every]


@pytest.mark.parametrize("loss", but_soak(["gspo"], list(OF_TRL)))
def test_losses_and_updates_are_those_of_trl_in_other_micro_batches(loss: str, model: Path, tmp_path: Path) -> None:
    check_as_trl(loss, 1, model, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("loss", OF_TRL)
def test_losses_and_updates_are_those_of_trl_for_twenty_steps(loss: str, model: Path, tmp_path: Path) -> None:
    check_as_trl(loss, 10, model, tmp_path)


def of_paper(
    loss: str, now: Any, old: Any, groups: Sequence[Any], ends: Sequence[int], *, masked: bool, beta: float
) -> Tensor:
    """The loss of a batch as the papers write it, in double precision, an answer at a time. The model that sampled the
    answers is the reference too."""
    terms, tokens = [], 0
    for group in groups:
        rewards = [max(0.0, 1 - abs(len(ids) - 3) / 3) for ids in group.ids]
        mean = sum(rewards) / GROUP
        deviation = math.sqrt(sum((one - mean) ** 2 for one in rewards) / (GROUP - 1)) + 1e-4
        for ids, reward in zip(group.ids, rewards, strict=True):
            if masked and ids[-1] not in ends:
                continue
            advantage = {"dr_grpo": reward - mean, "rloo": reward - (sum(rewards) - reward) / (GROUP - 1)}.get(
                loss, (reward - mean) / deviation
            )
            log_T, old_T = (of_tokens(each, group.prompt_ids, ids) for each in (now, old))
            old_T = old_T.detach()
            ratio_T = (log_T - old_T).exp()
            kl_T = ratio_T * ((old_T - log_T).exp() - (old_T - log_T) - 1)
            low, high = (3e-4, 4e-4) if loss == "gspo" else (0.2, 0.28)
            weight_T = (log_T - old_T).mean().exp().expand(len(ids)) if loss == "gspo" else ratio_T
            if loss == "cispo":
                gain_T = weight_T.clamp(max=1 + high).detach() * advantage * log_T
            else:
                gain_T = torch.minimum(weight_T * advantage, weight_T.clamp(1 - low, 1 + high) * advantage)
            loss_T = beta * kl_T - gain_T
            tokens += len(ids)
            terms.append(
                {"grpo": loss_T.mean(), "gspo": loss_T.mean(), "dr_grpo": loss_T.sum() / LENGTH}.get(loss, loss_T.sum())
            )
    return torch.stack(terms).sum() / (tokens if loss in ("dapo", "cispo") else len(terms))


def of_tokens(model: Any, prompt: list[int], answer: list[int]) -> Tensor:
    ids = torch.tensor([*prompt, *answer])
    scores = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
    found: Tensor = scores.gather(1, ids[1:, None])[len(prompt) - 1 :, 0]
    return found


@pytest.mark.parametrize(
    "case", but_soak([("grpo", True), ("rloo", True)], [*((loss, True) for loss in LOSSES), ("rloo", False)])
)
def test_losses_are_those_of_the_papers_and_divide_by_what_they_sum_over(
    case: tuple[str, bool], model: Path, tmp_path: Path
) -> None:
    loss, masked = case
    beta = 0.0 if loss == "gspo" else 0.02  # TRL weighs the divergence by the answer's ratio too
    ours = trainer_of(model, tmp_path, 1, loss=loss, updates=2, beta=beta, mask_cut=masked)
    (groups,) = recorded(ours)
    assert any(ids[-1] not in ENDS for group in groups for ids in group.ids)
    ours.model.zero_grad()
    losses = [ours._compute_loss(ours.model, batch) for batch in ours._buffered_inputs]
    torch.stack(losses).sum().backward()
    now, old = (load_pretrained(model).double() for _ in range(2))
    now.load_state_dict(ours.model.state_dict())
    expected = of_paper(loss, now, old, groups, ours.eos_token_ids, masked=masked, beta=beta)
    expected.backward()
    assert float(sum(losses)) == pytest.approx(float(expected), abs=1e-5)
    for one, other in zip(ours.model.parameters(), now.parameters(), strict=True):
        assert other.grad is not None
        torch.testing.assert_close(one.grad, other.grad.float(), rtol=0, atol=1e-5)


class KilledError(Exception):
    """In place of a signal."""


def state_of(trainer: Any) -> tuple[list[dict[str, Any]], list[Tensor]]:
    kept = ("loss", "grad_norm", "kl", "entropy", "reward", "groups_refilled", "completions/clipped_ratio")
    rows = [{name: row[name] for name in kept} for row in trainer.state.log_history if "loss" in row]
    return rows, [value.detach().clone() for value in trainer.model.parameters()]


@pytest.mark.parametrize("place", but_soak(["_compute_loss"], ["_sample", "_is_alike", "_compute_loss"]))
def test_killed_in_sampling_in_scoring_or_in_an_update_it_resumes_exactly(
    place: str, model: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "rewards": [{"kind": "length", "target": 1}],  # few answers are so short: groups are alike
        "updates": 2,
        "group": 2,
        "refills": 2,
        "mask_cut": True,
        "adapter": {"rank": 4, "alpha": 8},
    }

    def saving(folder: Path) -> Any:
        made = trainer_of(model, folder, 2 if place == "_compute_loss" else 3, **settings)
        made.args.save_strategy, made.args.save_steps = "steps", 3
        return made

    whole, killed = saving(tmp_path / "whole"), saving(tmp_path / "killed")
    whole.train()
    honest = getattr(killed, place)

    def kill(*given: Any) -> Any:
        if killed.state.global_step == (3 if place == "_compute_loss" else 4):
            raise KilledError
        return honest(*given)

    setattr(killed, place, kill)
    with pytest.raises(KilledError):
        killed.train()
    (checkpoint,) = Path(killed.args.output_dir).glob("checkpoint-*")
    assert (checkpoint / "rollout.safetensors").exists(), "it is within a batch"
    resumed = saving(tmp_path / "killed")
    resumed.train(resume_from_checkpoint=str(checkpoint))
    (rows, weights), (others, found) = state_of(whole), state_of(resumed)
    assert rows == others
    assert sum(row["groups_refilled"] for row in rows) > 0
    assert all(torch.equal(one, other) for one, other in zip(weights, found, strict=True))


def test_groups_that_are_alike_are_refilled_by_other_prompts_and_counted(model: Path, tmp_path: Path) -> None:
    def batch_of(refills: int) -> tuple[list[Any], Any]:
        ours = trainer_of(model, tmp_path, 1, 1, group=2, global_batch=3, epochs=3 / len(ROWS), refills=refills)
        (groups,) = recorded(ours)
        return groups, ours

    plain, without = batch_of(0)
    alike = [without._is_alike(group) for group in plain]
    assert any(alike)
    refilled, ours = batch_of(8)
    assert not any(ours._is_alike(group) for group in refilled)
    assert [a.ids == b.ids for a, b in zip(plain, refilled, strict=True)] == [not each for each in alike]
    prompts = {str(group.row["prompt"]) for group in refilled}
    assert len(prompts) == 3
    assert not prompts & {str(group.row["prompt"]) for group, same in zip(plain, alike, strict=True) if same}
    assert logged(ours, "groups_refilled")[0] >= sum(alike)
    assert logged(ours, "frac_reward_zero_std") == [0]
    assert logged(without, "frac_reward_zero_std") == pytest.approx([sum(alike) / 3])


def parameters_alive() -> dict[int, int]:
    gc.collect()
    alive = (one for one in gc.get_objects() if isinstance(one, torch.nn.Parameter))
    return {one.data_ptr(): one.numel() for one in alive}


@pytest.mark.parametrize(
    ("settings", "copies"), [({}, 2), ({"beta": 0}, 1), ({"adapter": {"rank": 4}}, 1)], ids=["full", "no KL", "LoRA"]
)
def test_the_reference_is_a_second_model_only_beside_a_full_one(
    settings: dict[str, Any], copies: int, model: Path, tmp_path: Path
) -> None:
    before = parameters_alive()
    ours = trainer_of(model, tmp_path, 1, **settings)
    alive = sum(number for place, number in parameters_alive().items() if place not in before)
    base = sum(value.numel() for value in load_pretrained(model).parameters())
    adapter = sum(value.numel() for name, value in ours.model.named_parameters() if "lora_" in name)
    assert (adapter > 0) == ("adapter" in settings)
    assert alive == copies * base + adapter


def test_under_an_adapter_the_reference_is_its_base(model: Path, tmp_path: Path) -> None:
    ours = trainer_of(model, tmp_path, 2, micro_batch=BATCH, adapter={"rank": 4, "alpha": 64})
    groups = recorded(ours)[-1]
    (batch,) = ours._buffered_inputs
    base = load_pretrained(model).double()
    expected = sorted(float(of_tokens(base, g.prompt_ids, ids).sum()) for g in groups for ids in g.ids)
    found = (batch["ref_per_token_logps"] * batch["completion_mask"]).sum(1)
    assert sorted(found.tolist()) == pytest.approx(expected, abs=1e-4)
    assert logged(ours, "kl")[1] > logged(ours, "kl")[0] == 0


def test_long_answers_lose_reward_before_they_are_cut(model: Path, tmp_path: Path) -> None:
    ours = trainer_of(model, tmp_path, 1, overlong={"start": 2, "penalty": 0.5})
    (groups,) = recorded(ours)
    for group in groups:
        penalties = [-max(0, len(ids) - 2) / (LENGTH - 2) for ids in group.ids]
        assert group.rewards[:, 1].tolist() == pytest.approx(penalties)
    (row,) = [row for row in ours.state.log_history if "reward" in row]
    parts = row["rewards/length/mean"] + 0.5 * row["rewards/overlong/mean"]
    assert row["reward"] == pytest.approx(parts, abs=1e-6)
    assert row["rewards/overlong/mean"] < 0
