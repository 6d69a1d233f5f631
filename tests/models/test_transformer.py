"""The decoder: the same logits as transformers for each family, the loss without its logits, the arithmetic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from models.config import ModelConfig
from models.convert import _to_ours, from_transformers, to_transformers
from models.kernels.attention import additive
from models.kernels.cross_entropy import IGNORED
from models.presets import LOSS_CHUNK, ModelShape, Recompute, count_parameters, derive, flops_per_token
from models.transformer import Transformer

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"kv_heads": 2},
    "llama-untied": {"kv_heads": 1, "tie_embeddings": False, "rope_theta": 500_000.0},
    "mistral": {"kv_heads": 2, "sliding_window": 5},
    "qwen3": {"head_size": 24, "rope_theta": 1e6},
    "qwen3-untied": {"kv_heads": 1, "tie_embeddings": False},
    "qwen3_moe": {"head_size": 24, "experts": 6, "experts_per_token": 3, "expert_feed_forward": 40},
    "gemma3": {"head_size": 24, "sliding_window": 5, "global_every": 2, "local_rope_theta": 500.0},
    "gemma3-local": {"depth": 3, "sliding_window": 9, "global_every": 3},
    "olmo3": {"kv_heads": 2, "sliding_window": 5, "global_every": 2},
}


def shape_of(name: str, **more: Any) -> ModelShape:
    config = {"depth": 2, "width": 64, "heads": 4, "context": 32, **FAMILIES[name], **more}
    return derive(ModelConfig.model_validate({"family": name.partition("-")[0], **config}), 300)


def build(shape: ModelShape) -> Transformer:
    """A model whose every parameter matters: norms and biases too are moved away from 1 and 0."""
    generator = torch.Generator().manual_seed(0)
    model = Transformer(shape, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return model.eval()


def gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_are_those_of_transformers_and_conversion_loses_nothing(family: str) -> None:
    model = build(shape_of(family))
    ids_BT = torch.randint(0, 300, (2, 32), generator=torch.Generator().manual_seed(1))
    theirs = to_transformers(model)
    assert (model(ids_BT) - theirs(ids_BT).logits).abs().max() < 1e-4
    back = from_transformers(theirs)
    assert back.shape == model.shape
    for (name, ours), again in zip(model.state_dict().items(), back.state_dict().values(), strict=True):
        assert torch.equal(ours, again), name


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_transformers(family: str) -> None:
    model = build(shape_of(family))
    ids_BT = torch.randint(0, 300, (2, 32), generator=torch.Generator().manual_seed(1))
    theirs = to_transformers(model)
    for logits in (model(ids_BT), theirs(ids_BT).logits):
        logits.square().mean().backward()
    of_theirs = _to_ours({name: gradient(parameter) for name, parameter in theirs.named_parameters()}, model.shape)
    for name, parameter in model.named_parameters():
        assert torch.allclose(gradient(parameter), of_theirs[name], rtol=1e-3, atol=1e-6), name


@torch.no_grad()
def test_scores_of_gemma_3_are_divided_by_a_scalar_of_its_own() -> None:
    shape = shape_of("gemma3")
    model = build(replace(shape, query_scalar=7))
    ids_BT = torch.randint(0, 300, (2, 32), generator=torch.Generator().manual_seed(1))
    theirs = to_transformers(model)
    assert theirs.config.query_pre_attn_scalar == 7
    assert (model(ids_BT) - theirs(ids_BT).logits).abs().max() < 1e-4
    assert (model(ids_BT) - build(shape)(ids_BT)).abs().max() > 1e-2


class _InDouble(TorchFunctionMode):
    """Computes in float64 what a module would in float32."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        double = {torch.float32: torch.float64}
        kwargs = {
            name: double.get(value, value) if name == "dtype" else value for name, value in (kwargs or {}).items()
        }
        if func is Tensor.float:
            func = Tensor.double
        return func(
            *(double.get(value, value) if isinstance(value, torch.dtype) else value for value in args), **kwargs
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_in_float64_nothing_but_rounding_is_apart(family: str) -> None:
    model = build(shape_of(family))
    ids_BT = torch.randint(0, 300, (2, 32), generator=torch.Generator().manual_seed(1))
    theirs = to_transformers(model).double()
    if family == "qwen3_moe":
        theirs.set_experts_implementation("eager")  # its grouped product lacks float64
    with _InDouble():
        if model.shape.rope_theta is not None:
            theirs.model.rotary_emb = type(theirs.model.rotary_emb)(theirs.config)
        logits = [model.double()(ids_BT), theirs(ids_BT).logits]
        for one in logits:
            one.square().mean().backward()
    assert (logits[0] - logits[1]).abs().max() < 1e-10
    of_theirs = _to_ours({name: gradient(parameter) for name, parameter in theirs.named_parameters()}, model.shape)
    for name, parameter in model.named_parameters():
        assert torch.allclose(gradient(parameter), of_theirs[name], rtol=1e-8, atol=1e-12), name


@torch.no_grad()
def test_a_real_model_gives_the_logits_that_transformers_gives(shared_data: Callable[[str], Path]) -> None:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(shared_data("models/stories260k/hf"), dtype=torch.float32).eval()
    ids_BT = torch.randint(3, theirs.config.vocab_size, (1, 64), generator=torch.Generator().manual_seed(0))
    assert (from_transformers(theirs)(ids_BT) - theirs(ids_BT).logits).abs().max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_and_flops_are_what_the_formulas_say(family: str) -> None:
    shape = shape_of(family, context=64)
    model = build(shape)
    assert model.num_parameters() == count_parameters(shape)
    ids_BT = torch.randint(0, 300, (1, 64))
    # The fused kernel of the CPU is not counted
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(ids_BT).sum().backward()
    # A sliding window is masked here, not skipped
    counted = flops_per_token(replace(shape, sliding_window=None))
    assert counter.get_total_flops() / 64 == pytest.approx(counted, rel=0.01)


def test_the_chunked_loss_and_its_gradients_are_those_of_the_plain_loss() -> None:
    model = build(shape_of("llama", context=LOSS_CHUNK))
    generator = torch.Generator().manual_seed(2)
    ids_BT = torch.randint(0, 300, (3, LOSS_CHUNK // 2 + 7), generator=generator)
    targets_BT = torch.randint(0, 300, ids_BT.shape, generator=generator)
    targets_BT[:, ::3] = IGNORED
    plain = F.cross_entropy(model(ids_BT).flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORED)
    plain.backward()
    expected = {name: gradient(parameter).clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    chunked = model(ids_BT, targets_BT)
    chunked.backward()
    assert chunked.item() == pytest.approx(plain.item(), abs=1e-6)
    for name, parameter in model.named_parameters():
        assert torch.allclose(gradient(parameter), expected[name], atol=1e-6), name
    with torch.no_grad():
        assert model(ids_BT, targets_BT).item() == pytest.approx(plain.item(), abs=1e-6)


def test_a_loss_gives_its_gradients_once() -> None:
    ids_BT = torch.randint(0, 300, (1, 32), generator=torch.Generator().manual_seed(3))
    loss = build(shape_of("llama"))(ids_BT, ids_BT)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward pass"):
        loss.backward()


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_recomputed_activations_change_no_bit_of_a_gradient(family: str, autocast: bool) -> None:
    model = build(shape_of(family))
    ids_BT = torch.randint(0, 300, (2, 32), generator=torch.Generator().manual_seed(3))
    gradients = []
    for model.recompute in ("none", "selective", "full"):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model(ids_BT, ids_BT)
        loss.backward()
        gradients.append([gradient(parameter).clone() for parameter in model.parameters()])
    for none, selective, full in zip(*gradients, strict=True):
        assert torch.equal(none, selective)
        assert torch.equal(none, full)


@pytest.mark.parametrize(("recompute", "products"), [("none", 1.0), ("selective", 1.0), ("full", 4 / 3)])
def test_selective_recomputation_repeats_no_matrix_product(recompute: Recompute, products: float) -> None:
    model = build(shape_of("llama"))
    model.recompute = recompute
    ids_BT = torch.randint(0, 300, (2, 32), generator=torch.Generator().manual_seed(3))
    with FlopCounterMode(display=False) as counter:
        model(ids_BT).sum().backward()
    counted = counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    head = 3 * 2 * ids_BT.numel() * 64 * 300
    # Without the head, which is never computed again, and what early stopping spares: the last product of each block
    down = 2 * 2 * ids_BT.numel() * 64 * model.shape.feed_forward if recompute == "full" else 0
    plain = 3 * 2 * ids_BT.numel() * sum(p.numel() for p in model.blocks.parameters() if p.dim() == 2)
    assert counted - head + down == pytest.approx(products * plain, rel=1e-6)


def test_truth_masks_become_numbers_once_in_the_precision_of_attention() -> None:
    mask = torch.tensor([[True, False], [True, True]])
    assert additive(mask, torch.zeros(1)).tolist() == [[0.0, -math.inf], [0.0, 0.0]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert additive(mask, torch.zeros(1)).dtype == torch.bfloat16


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fresh_model_finds_every_token_equally_likely(family: str) -> None:
    model = Transformer(shape_of(family), torch.Generator().manual_seed(0))
    ids_BT = torch.randint(0, 300, (8, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert model(ids_BT, ids_BT.roll(1, 1)).item() == pytest.approx(math.log(300), abs=0.1)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_packed_document_has_the_logits_it_has_alone(family: str) -> None:
    model = build(shape_of(family))
    generator = torch.Generator().manual_seed(5)
    lengths = ((9, 1, 15, 7), (20, 12))
    ids_BT = torch.randint(0, 300, (2, 32), generator=generator)
    positions_BT = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in lengths])
    packed = model(ids_BT, positions_BT=positions_BT)
    for row, ends in enumerate(lengths):
        for start, length in zip(itertools.accumulate((0, *ends)), ends, strict=False):
            part = slice(start, start + length)
            assert (packed[row, part] - model(ids_BT[row : row + 1, part])[0]).abs().max() < 1e-5
    assert (packed - model(ids_BT)).abs().max() > 0.01
    one = torch.arange(32).expand(2, -1)
    assert (model(ids_BT, positions_BT=one) - model(ids_BT)).abs().max() < 1e-5


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_packed_batch_teaches_what_its_documents_teach_alone(recompute: Recompute) -> None:
    model = build(shape_of("llama"))
    model.recompute = recompute
    ids_BT = torch.randint(0, 300, (1, 32), generator=torch.Generator().manual_seed(6))
    targets_BT = ids_BT.roll(-1, 1)
    targets_BT[0, [11, 31]] = IGNORED
    positions_BT = torch.cat((torch.arange(12), torch.arange(20)))[None]
    model(ids_BT, targets_BT, positions_BT).backward()
    packed = [gradient(parameter).clone() for parameter in model.parameters()]
    model.zero_grad()
    loss = model(ids_BT[:, :12], targets_BT[:, :12]) * 11 + model(ids_BT[:, 12:], targets_BT[:, 12:]) * 19
    (loss / 30).backward()
    for one, other in zip(packed, model.parameters(), strict=True):
        assert torch.allclose(one, gradient(other), atol=1e-6)


@torch.no_grad()
def test_no_token_sees_a_later_one_nor_one_outside_the_window() -> None:
    model = build(shape_of("mistral", depth=1))
    ids_BT = torch.randint(0, 300, (1, 20), generator=torch.Generator().manual_seed(4))
    before = model(ids_BT)
    changed = ids_BT.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 300
    moved = ((model(changed) - before).abs().amax(-1)[0] > 1e-6).nonzero().flatten().tolist()
    assert moved == [10, 11, 12, 13, 14]  # a window of five, itself included


@torch.no_grad()
def test_generation_is_greedy_at_temperature_0_and_ends_at_the_stop_token() -> None:
    model = build(shape_of("llama"))
    prompt = torch.tensor([[5, 6, 7]])
    made = model.generate(prompt, 4)[0].tolist()
    assert made[3] == int(model(prompt)[0, -1].argmax())
    assert model.generate(prompt, 4, stop=made[4])[0].tolist() == made[: made.index(made[4], 3) + 1]
    with pytest.raises(ValueError, match="don't fit"):
        model(torch.zeros(1, 33, dtype=torch.long))
