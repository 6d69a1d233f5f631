"""Optimizers: which one takes which weights, Muon by its definition, muP by its coordinate check, saved states."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from models.presets import derive
from models.transformer import Transformer, writes_to_residual
from storage.errors import ConfigError
from tasks.pretrain import PretrainConfig
from tasks.pretrain.check import check_special
from tasks.pretrain.engines.base import Engine
from tasks.pretrain.recipe.optimizers import new_optimizer, parameter_groups, set_learning_rate
from tasks.pretrain.recipe.schedule import learning_rate
from tests.runtimes import runtime_of
from tests.tasks.pretrain.one_process import (
    ALONE,
    micro_batches,
    one_process,
    open_ddp,
    rows,
    spec_of,
    train,
    weights_of,
)

__all__ = ["one_process"]  # the fixture

SHAPES: dict[str, dict[str, Any]] = {"llama": {}, "untied": {"tie_embeddings": False}, "gpt2": {"family": "gpt2"}}
FUSED = {"qkv.weight": [64, 32, 32], "up.weight": [192, 192]}  # rows of each matrix in those of width 64, grouped


def build(width: int = 64, shape: str = "llama", depth: int = 2, **choices: Any) -> tuple[PretrainConfig, Transformer]:
    model = {"depth": depth, "width": width, "heads": width // 32, "feed_forward": 3 * width, "context": 16}
    config = PretrainConfig.model_validate({"model": {**model, **SHAPES.get(shape, {"kv_heads": 1})}, **choices})
    torch.manual_seed(0)
    return config, Transformer(
        derive(config.new_model, 64), mup_base_width=config.mup_base_width, mup_base_depth=config.mup_base_depth
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("base", [None, 16])
def test_matrices_decay_and_vectors_do_not_and_nothing_is_left_out(
    shape: str, optimizer: str, base: int | None
) -> None:
    config, model = build(shape=shape, optimizer=optimizer, mup_base_width=base, weight_decay=0.1)
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = []
    for by, group in parameter_groups(config, model):
        for parameter in group["params"]:
            name = names[parameter]
            found.append(name)
            inside = name.startswith("blocks.") and parameter.dim() == 2
            assert (by == "muon") == (inside and optimizer == "muon"), name
            shrink = 4**0.5 if optimizer == "muon" else 4
            expected = 1.0 if base is None else 1 / shrink if inside else 1 / 4 if name.startswith("norm.") else 1.0
            assert group["rate_scale"] == pytest.approx(expected), name
            # What is taken from a weight in a step is rate × decay: that does not depend on the width
            decay = 0.1 if parameter.dim() == 2 else 0.0
            assert group["weight_decay"] * group["rate_scale"] == pytest.approx(decay), name
    assert sorted(found) == sorted(names.values())


@pytest.mark.parametrize("choices", [{}, {"optimizer": "muon"}, {"mup_base_width": 16}, {"mup_base_depth": 1}], ids=str)
def test_a_part_of_the_model_has_the_same_groups_in_the_same_order(choices: dict[str, Any]) -> None:
    config, model = build(**choices)
    found = [
        [(by, group["weight_decay"], group["rate_scale"]) for by, group in parameter_groups(config, part)]
        for part in (model, nn.ModuleDict({"blocks": model.blocks}), nn.ModuleDict({"norm": model.norm}))
    ]
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == {"optimizer": 3, "mup_base_width": 4, "mup_base_depth": 4}.get(next(iter(choices), ""), 2)


def test_adamw_is_torchs_with_the_profiles_numbers() -> None:
    choices: dict[str, Any] = {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3, "weight_decay": 0.2}
    (config, ours), (_, theirs) = build(**choices), build()
    parameters = list(theirs.parameters())
    groups = [
        {"params": [p for p in parameters if (p.dim() >= 2) == m], "weight_decay": 0.2 * m} for m in (True, False)
    ]
    plain = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.9), eps=1e-3, fused=True)
    optimizer = new_optimizer(config, ours)
    set_learning_rate(optimizer.param_groups, 0.01)
    ids_BT = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        for model, one in ((ours, optimizer), (theirs, plain)):
            model(ids_BT, ids_BT.roll(-1, 1)).backward()
            one.step()
            one.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def orthogonal(update: Tensor) -> Tensor:
    """Newton and Schulz's iteration with the coefficients of Jordan et al. 2024, in float64."""
    x: Tensor = update / update.norm()
    x = x.T if len(update) > update.shape[1] else x
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if len(update) > update.shape[1] else x


def test_muon_steps_by_the_orthogonal_part_of_its_momentum() -> None:
    config, model = build(
        shape="grouped", optimizer="muon", muon_learning_rate=0.05, weight_decay=0.1, muon_momentum=0.9
    )
    optimizer = new_optimizer(config, model)
    generator = torch.Generator().manual_seed(0)
    expected = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    memory: dict[str, Tensor] = {}
    for rate in (0.003, 0.0015):  # of AdamW, whose peak is 3e-3: Muon's is 0.05 and 0.025
        set_learning_rate(optimizer.param_groups, rate)
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            if name.startswith("blocks.") and parameter.dim() == 2:
                gradient, weight = parameter.grad.double(), expected[name]
                memory[name] = 0.9 * memory.get(name, torch.zeros(())) + 0.1 * gradient
                update = 0.1 * gradient + 0.9 * memory[name]  # Nesterov's
                own = rate / 0.003 * 0.05
                rows = next((parts for part, parts in FUSED.items() if part in name), [len(weight)])
                step = [0.2 * math.sqrt(max(matrix.shape)) * orthogonal(matrix) for matrix in update.split(rows)]
                expected[name] = weight * (1 - own * 0.1) - own * torch.cat(step)
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        optimizer.step()
    for name, parameter in model.named_parameters():
        if name in memory:
            moved = (expected[name] - before[name]).norm()
            assert (parameter.double() - expected[name]).norm() < 1e-5 * moved, name
        else:
            assert 0 < (parameter - before[name]).abs().max() < 0.002, name  # Adam's, at Adam's rate


GIVEN: dict[str, Any] = {
    "steps": 6,
    "schedule": "linear",
    "learning_rate": 0.01,
    "warmup_steps": 2,
    "final_share": 0.5,
    "weight_decay": 0.3,
    "beta1": 0.8,
    "beta2": 0.9,
    "z_loss": 0.1,
    "gradient_clip": 0.5,
}


@pytest.mark.parametrize(
    "zero", [{}, *({name: 0} for name in ("warmup_steps", "final_share", "weight_decay", "beta1", "z_loss"))], ids=str
)
def test_a_setting_of_zero_is_meant(zero: dict[str, Any]) -> None:
    chosen = GIVEN | zero
    engine = open_ddp(**chosen)
    weights = {name: value.detach().clone() for name, value in engine.model.named_parameters()}
    first, second = ({name: torch.zeros_like(value) for name, value in weights.items()} for _ in range(2))
    for step in range(1, GIVEN["steps"] + 1):
        warm, begun = (
            chosen["warmup_steps"],
            (step - chosen["warmup_steps"]) / (GIVEN["steps"] - chosen["warmup_steps"]),
        )
        share = step / warm if step <= warm else 1 - begun * (1 - chosen["final_share"])
        gradients = gradients_of(engine.model, weights, step, chosen["z_loss"])
        norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
        for name, gradient in gradients.items():
            gradient = gradient * min(1.0, 0.5 / norm)
            for moment, beta, value in ((first, chosen["beta1"], gradient), (second, chosen["beta2"], gradient**2)):
                moment[name] = beta * moment[name] + (1 - beta) * value
            unbiased = first[name] / (1 - chosen["beta1"] ** step), second[name] / (1 - chosen["beta2"] ** step)
            decay = chosen["weight_decay"] if gradient.dim() > 1 else 0
            update = decay * weights[name] + unbiased[0] / (unbiased[1].sqrt() + 1e-8)
            weights[name] -= 0.01 * share * update
        batches = micro_batches(rows(step), 8)
        engine.step(batches, learning_rate(engine.config, step, GIVEN["steps"]))
    for name, value in engine.model.named_parameters():
        assert torch.allclose(value, weights[name], atol=2e-5), name


def gradients_of(model: nn.Module, weights: dict[str, Tensor], step: int, z_loss: float) -> dict[str, Tensor]:
    """The gradients of a step's loss and of z_loss × log² Z, by the logits."""
    at = {name: value.clone().requires_grad_() for name, value in weights.items()}
    ids_BT, targets_BT, _ = micro_batches(rows(step), 8)[0]
    logits_BTV = torch.func.functional_call(model, at, (ids_BT,))
    loss = nn.functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())
    loss = loss + z_loss * logits_BTV.logsumexp(-1).square().mean()
    return dict(zip(at, torch.autograd.grad(loss, list(at.values())), strict=True))


@torch.no_grad()
def looked_at(model: Transformer, ids_BT: Tensor) -> tuple[Tensor, Tensor]:
    hidden: list[Tensor] = []
    handle = model.blocks[-1].register_forward_hook(lambda _module, _given, made: hidden.append(made))
    logits = model(ids_BT)
    handle.remove()
    return hidden[0], logits


def moved(shape: str, width: int = 64, depth: int = 2, rate: float = 0.01, **choices: Any) -> tuple[float, float]:
    """How far five steps move the residual stream and the logits of one batch, root mean square."""
    config, model = build(width, shape, depth, **choices)
    optimizer = new_optimizer(config, model)
    set_learning_rate(optimizer.param_groups, rate)
    ids_BT = torch.randint(0, 64, (8, 17), generator=torch.Generator().manual_seed(1))
    before = looked_at(model, ids_BT[:, :-1])
    for _ in range(5):
        model(ids_BT[:, :-1], ids_BT[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = looked_at(model, ids_BT[:, :-1])
    hidden, logits = ((new - old).square().mean().sqrt().item() for new, old in zip(after, before, strict=True))
    return hidden, logits


@pytest.mark.soak
@pytest.mark.parametrize(("optimizer", "shape"), [("muon", "llama"), *(("adamw", shape) for shape in SHAPES)])
def test_under_mup_activations_move_alike_at_every_width(optimizer: str, shape: str) -> None:
    for base, flat in ((None, False), (64, True)):
        sizes = [moved(shape, width, optimizer=optimizer, mup_base_width=base) for width in (64, 128, 256)]
        print(f"{optimizer} {shape}, base width {base}: {[f'{h:.3f} {z:.3f}' for h, z in sizes]}")
        for narrow, *_, wide in zip(*sizes, strict=True):
            assert 0.4 < wide / narrow < 1.5 if flat else wide / narrow > 1.9


@pytest.mark.soak
@pytest.mark.parametrize(("optimizer", "shape"), [("muon", "llama"), *(("adamw", shape) for shape in SHAPES)])
def test_under_mup_the_residual_stream_moves_alike_at_every_depth(optimizer: str, shape: str) -> None:
    for base, flat in ((None, False), (4, True)):
        choices: dict[str, Any] = {"optimizer": optimizer, "mup_base_depth": base}
        sizes = [moved(shape, depth=depth, rate=0.003, **choices)[0] for depth in (4, 8, 16, 32)]
        print(f"{optimizer} {shape}, base depth {base}: {[f'{moved:.3f}' for moved in sizes]}")
        assert 0.7 < sizes[-1] / sizes[0] < 1.3 if flat else sizes[-1] / sizes[0] > 1.5


@pytest.mark.parametrize(("optimizer", "shape"), [("muon", "llama"), ("adamw", "gpt2")])
def test_depth_is_in_the_weights_as_a_multiplier_of_what_a_block_adds(optimizer: str, shape: str) -> None:
    """Against a model that multiplies what its blocks add by a third, with weights and rates of the base depth."""
    choices: dict[str, Any] = {"optimizer": optimizer, "weight_decay": 0.1, "epsilon": 1e-20}
    (config, folded), (plain, model) = (
        build(shape=shape, depth=6, **{**choices, "mup_base_depth": base}) for base in (2, None)
    )
    with torch.no_grad():
        for (name, weight), other in zip(model.named_parameters(), folded.parameters(), strict=True):
            weight.copy_(other * 3 if writes_to_residual(name) else other)
    for name, layer in model.named_modules():
        if writes_to_residual(f"{name}.weight"):
            layer.register_forward_hook(lambda _module, _given, made: made / 3)
    optimizers = new_optimizer(config, folded), new_optimizer(plain, model)
    ids_BT = torch.randint(0, 64, (8, 17), generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        losses = []
        for one, by in zip((folded, model), optimizers, strict=True):
            set_learning_rate(by.param_groups, 0.01)
            loss = one(ids_BT[:, :-1], ids_BT[:, 1:])
            loss.backward()
            by.step()
            by.zero_grad()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert losses[0] < 4


def test_muon_learns_and_an_embedding_is_not_orthogonalised() -> None:
    losses = train(open_ddp(optimizer="muon"), range(1, 31))
    assert losses[-1] < losses[0] - 1


@pytest.mark.parametrize(
    "choices", [{"optimizer": "muon"}, {"precision": "float16"}, {"optimizer": "muon", "precision": "float16"}], ids=str
)
def test_states_are_saved_and_taken_over_to_the_bit(choices: dict[str, Any], tmp_path: Path) -> None:
    engine = open_ddp(**choices)
    engine.scaler.set_growth_interval(2)  # so that a resume could lose it
    train(engine, range(1, 4))
    engine.save(tmp_path / "step-3")
    expected = train(engine, range(4, 7))
    other = open_ddp(seed=1, **choices)
    other.load(tmp_path / "step-3")
    assert train(other, range(4, 7)) == expected
    assert torch.equal(weights_of(other), weights_of(engine))
    assert other.scaler.state_dict() == engine.scaler.state_dict()


class Bare(Engine):
    """An engine without support for special choices."""

    # never called
    step = loss = save = load = whole_model = free_states = masters = masters_changed = lambda *_: None  # type: ignore[assignment]
    states = property(lambda self: {})


@pytest.mark.parametrize(
    ("choice", "runtime", "cause"),
    [
        ("muon", {"engine": "deepspeed", "zero_stage": 2}, "runtime.pretrain.zero_stage 2"),
        ("float16", {"engine": "fsdp"}, "the engine fsdp"),
        ("float16", {"engine": "ddp", "tensor_parallel": 2}, "runtime.pretrain.tensor_parallel 2"),
        ("float8", {"engine": "ddp", "pipeline_parallel": 2}, "runtime.pretrain.pipeline_parallel 2"),
        ("float16", {"engine": "deepspeed"}, "the engine deepspeed"),
    ],
    ids=str,
)
def test_what_an_engine_was_not_made_for_is_refused_by_the_setting_that_forbids_it(
    choice: str, runtime: dict[str, Any], cause: str
) -> None:
    with pytest.raises(ConfigError, match=f"{choice} does not work with {cause}"):
        check_special({choice}, runtime_of(**runtime).pretrain, cuda=False)


def test_an_engine_asks_that() -> None:
    with pytest.raises(ConfigError, match="float16 does not work with the engine fsdp"):
        Bare(spec_of(engine="fsdp", precision="float16"), ALONE)
    assert Bare(spec_of(), ALONE).dtype == torch.float32


@pytest.mark.parametrize("name", ["learning_rate", "muon_learning_rate", "weight_decay", "epsilon"])
@pytest.mark.parametrize("value", [1e300, float("inf"), float("nan"), -1e-3])
def test_a_number_that_no_weight_can_be_changed_by_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValidationError, match=name):
        PretrainConfig.model_validate({"steps": 1, "global_batch": 1, "optimizer": "muon", name: value})
