"""A mixture of experts: its losses and gradients against transformers', its products, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from models.config import ModelConfig
from models.convert import _to_ours, to_transformers
from models.kernels import grouped
from models.kernels.cross_entropy import IGNORED
from models.kernels.experts import Experts, Router, set_losses
from models.kernels.grouped import grouped_linear
from models.presets import ModelShape, ShapeError, chinchilla_tokens, count_parameters, derive, explain, flops_per_token
from models.transformer import Transformer
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.recipe.optimizers import parameter_groups

EXPERTS, OF_TOKEN, INNER = 6, 3, 40
CONFIG: dict[str, Any] = {
    "family": "qwen3_moe",
    "depth": 2,
    "width": 64,
    "context": 32,
    "experts": EXPERTS,
    "experts_per_token": OF_TOKEN,
    "expert_feed_forward": INNER,
}


def shape_of(**more: Any) -> ModelShape:
    return derive(ModelConfig.model_validate({**CONFIG, **more}), 300)


def build(shape: ModelShape) -> Transformer:
    """A model with larger weights than usual, so that routers prefer some experts."""
    model = Transformer(shape, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(10 if "router" in name else 3)
    return model


def batch(rows: int = 2) -> Tensor:
    return torch.randint(0, 300, (rows, 32), generator=torch.Generator().manual_seed(1))


def gradients(model: Transformer, *arguments: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(*arguments).backward()
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def test_gradients_in_float64_are_those_of_transformers() -> None:
    model = build(shape_of())
    theirs = to_transformers(model).double()
    theirs.set_experts_implementation("eager")  # its grouped product lacks float64
    model.double()
    ids_BT = batch()
    for logits in (model(ids_BT), theirs(ids_BT).logits):
        logits.square().mean().backward()
    found = {name: value.grad for name, value in theirs.named_parameters() if value.grad is not None}
    expected = _to_ours(found, model.shape)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        # transformers computes the softmax and rotary embeddings in float32
        assert torch.allclose(parameter.grad, expected[name], rtol=1e-4, atol=1e-8), name


def test_the_gradient_of_the_layer_is_that_of_finite_differences() -> None:
    layer = Experts(shape_of(width=4, heads=1, expert_feed_forward=3)).double()
    generator = torch.Generator().manual_seed(3)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    set_losses(layer, balance=0.3, z_loss=0.1)
    x_BTC = torch.randn(2, 5, 4, dtype=torch.float64, generator=generator, requires_grad=True)

    def computed(x_BTC: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        names = dict(layer.named_parameters())
        found: tuple[Tensor, Tensor] = torch.func.functional_call(
            layer, dict(zip(names, parameters, strict=True)), (x_BTC,)
        )
        return found

    assert torch.autograd.gradcheck(computed, (x_BTC, *layer.parameters()), atol=1e-6)


@pytest.mark.parametrize("rows", [1, 3])
def test_the_balance_loss_is_that_of_transformers_for_each_row(rows: int) -> None:
    router = Router(shape_of())
    torch.nn.init.normal_(router.weight, generator=torch.Generator().manual_seed(0))
    set_losses(router, balance=1.0, z_loss=0.0)
    x_BTC = torch.randn(rows, 32, 64, generator=torch.Generator().manual_seed(1))
    _, _, losses_B = router(x_BTC)
    for x_TC, loss in zip(x_BTC, losses_B, strict=True):
        theirs = load_balancing_loss_func((F.linear(x_TC, router.weight),), EXPERTS, OF_TOKEN)
        assert isinstance(theirs, Tensor)
        assert loss.item() == pytest.approx(theirs.item() / OF_TOKEN, rel=1e-5)  # theirs is K if balanced, ours 1


def test_a_balanced_router_has_the_least_balance_loss_and_z_is_that_of_its_logits() -> None:
    router = Router(shape_of())
    torch.nn.init.zeros_(router.weight)
    x_BTC = torch.randn(1, 32, 64)
    set_losses(router, balance=1.0, z_loss=0.0)
    assert router(x_BTC)[2].item() == pytest.approx(1.0)
    set_losses(router, balance=0.0, z_loss=1.0)
    assert router(x_BTC)[2].item() == pytest.approx(torch.tensor(float(EXPERTS)).log().item() ** 2, rel=1e-5)


def test_the_losses_of_routers_move_weights_but_not_the_reported_loss() -> None:
    model, ids_BT = build(shape_of()), batch()
    plain, without = model(ids_BT, ids_BT).item(), gradients(model, ids_BT, ids_BT)
    set_losses(model, balance=1.0, z_loss=0.1)
    assert model(ids_BT, ids_BT).item() == plain
    changed = gradients(model, ids_BT, ids_BT)
    router = "blocks.1.feed_forward.router.weight"
    assert (changed[router] - without[router]).abs().max() > 1e-3
    with torch.no_grad():
        assert model(ids_BT, ids_BT).item() == pytest.approx(plain, rel=1e-6)


def test_a_batch_teaches_the_same_however_it_is_divided() -> None:
    """With rows of uneven targets, weighed as engines weigh micro-batches."""
    model, ids_BT = build(shape_of()), batch(4)
    set_losses(model, balance=1.0, z_loss=0.1)
    targets_BT = ids_BT.roll(-1, 1)
    for row in range(4):
        targets_BT[row, : 7 * row] = IGNORED
    together = gradients(model, ids_BT, targets_BT)
    model.zero_grad()
    for rows in (slice(0, 1), slice(1, 4)):
        share = (targets_BT[rows] != IGNORED).sum() / (targets_BT != IGNORED).sum()
        (model(ids_BT[rows], targets_BT[rows]) * share).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, together[name], atol=1e-6), name


def test_the_kernel_of_all_groups_multiplies_as_one_group_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's kernel, here the one for CPUs, with a group without rows."""
    generator = torch.Generator().manual_seed(0)
    x_MK, weight_ENK = (torch.randn(size, generator=generator) for size in ((24, 16), (4, 8, 16)))
    ends_E = torch.tensor([5, 5, 20, 24], dtype=torch.int32)
    found = []
    for kernel in (False, True):
        monkeypatch.setattr(grouped, "_has_kernel", lambda x_MK, weight_ENK, kernel=kernel: kernel)
        x, weight = (one.clone().requires_grad_() for one in (x_MK, weight_ENK))
        y_MN = grouped_linear(x, weight, ends_E)
        y_MN.square().sum().backward()
        assert x.grad is not None
        assert weight.grad is not None
        found.append((y_MN.detach(), x.grad, weight.grad))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    expected = torch.cat([x @ w.T for x, w in zip(x_MK.split([5, 0, 15, 4]), weight_ENK, strict=True)])
    assert torch.allclose(found[0][0], expected, atol=1e-6)
    assert found[0][2][1].abs().max() == 0


def test_each_expert_has_matrices_of_its_own_for_muon_and_routers_have_adamw() -> None:
    config = PretrainConfig.model_validate({"model": CONFIG, "optimizer": "muon", "mup_base_width": 32})
    model = Transformer(shape_of())
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = dict[str, dict[str, Any]]()
    for optimizer, group in parameter_groups(config, model):
        groups |= {names[one]: {**group, "optimizer": optimizer} for one in group["params"]}
    assert groups.keys() == set(names.values())
    muon = next(group for optimizer, group in parameter_groups(config, model) if optimizer == "muon")
    parts = {names[one]: rows for one, rows in zip(muon["params"], muon["parts"], strict=True)}
    assert parts["blocks.0.feed_forward.up.weight"] == (INNER,) * 2 * EXPERTS
    assert parts["blocks.0.feed_forward.down.weight"] == (64,) * EXPERTS
    router = groups["blocks.1.feed_forward.router.weight"]
    assert (router["optimizer"], router["rate_scale"]) == ("adamw", 0.5)


def test_sizes_are_derived_with_rules_and_count_what_a_token_passes() -> None:
    small = derive(ModelConfig(family="qwen3_moe", depth=8, context=1024), 6144)
    assert (small.experts, small.experts_per_token, small.expert_feed_forward) == (8, 2, 768)
    assert small.feed_forward == 1536
    large = derive(ModelConfig(family="qwen3_moe", depth=48, width=2048, heads=32, kv_heads=4, context=4096), 151_936)
    assert (large.experts, large.experts_per_token, large.expert_feed_forward) == (128, 8, 768)
    # Qwen3-30B-A3B: 30.5B parameters, of which 3.3B are active
    assert count_parameters(large) == 30_532_122_624
    assert count_parameters(large, active=True) == pytest.approx(3.35e9, rel=0.01)
    rows = {name: value for name, value, _ in explain(large)}
    assert rows["active parameters"] == count_parameters(large, active=True)
    assert chinchilla_tokens(large) == 20 * count_parameters(large, active=True)
    assert flops_per_token(large) < 0.2 * 6 * count_parameters(large)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"experts": None, "family": "qwen3"}, "experts_per_token applies only to qwen3_moe"),
        ({"feed_forward": 64}, "feed_forward does not apply to qwen3_moe"),
        ({"experts_per_token": 7}, "experts_per_token is 7 of 6 experts"),
    ],
)
def test_what_a_family_does_not_read_is_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ShapeError, match=named):
        shape_of(**settings)


@pytest.mark.parametrize("name", ["balance_loss", "router_z_loss"])
def test_losses_of_routers_are_refused_without_routers(name: str) -> None:
    dense = {"family": "qwen3", "depth": 2, "context": 32}
    with pytest.raises(ValueError, match=f"{name} is of the family qwen3_moe, not of qwen3"):
        PretrainConfig.model_validate({"model": dense, name: 0.1})
    assert PretrainConfig.model_validate({"model": CONFIG}).router_losses == {"balance": 0.01, "z_loss": 0.001}
    without = PretrainConfig.model_validate({"model": CONFIG, name: 0.0})
    assert 0 in without.router_losses.values()
