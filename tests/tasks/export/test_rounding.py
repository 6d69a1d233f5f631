"""Rounding by hand: words of codes, scales, and that GPTQ, AWQ and SmoothQuant lose less than rounding to nearest."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.pretrained import load_pretrained
from tasks.export.formats.compressed.awq import column_factors, output_error
from tasks.export.formats.compressed.calibration import Calibration, Inputs
from tasks.export.formats.compressed.folds import divide, fits, folds_of
from tasks.export.formats.compressed.gptq import gptq, inverse_factor
from tasks.export.formats.compressed.layers import find_blocks, groups_of, targets_of
from tasks.export.formats.compressed.packing import pack, unpack
from tasks.export.formats.compressed.rounding import dense, round_to, searched_scales, widest_scales
from tasks.export.formats.compressed.smooth import smoothing_factors
from tests.tasks.foreign import make_foreign


def test_the_first_of_eight_codes_stands_in_the_lowest_bits() -> None:
    codes = torch.arange(-8, 8, dtype=torch.int8).view(1, 16)
    assert [word & 0xFFFFFFFF for word in pack(codes)[0].tolist()] == [0x76543210, 0xFEDCBA98]
    assert torch.equal(unpack(pack(codes)), codes)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 1000))
def test_words_are_those_of_compressed_tensors(rows: int, words: int, seed: int) -> None:
    codes = torch.randint(-8, 8, (rows, 8 * words), generator=_drawn(seed)).to(torch.int8)
    assert torch.equal(pack(codes), pack_to_int32(codes, 4))
    assert torch.equal(unpack_from_int32(pack(codes), 4, codes.shape), codes)


def test_a_row_that_fills_no_word_is_refused() -> None:
    with pytest.raises(ValueError, match="12 columns"):
        pack(torch.zeros(2, 12, dtype=torch.int8))


@pytest.mark.parametrize("bits", [4, 8])
def test_no_weight_is_off_by_more_than_half_a_step(bits: int) -> None:
    weights = torch.randn(6, 64, generator=_drawn(0))
    rounded = round_to(weights, widest_scales(weights, 32, bits), bits)
    steps = ((rounded.dense() - weights).view(6, 2, 32) / rounded.scales_RG.float().unsqueeze(-1)).abs()
    assert steps.max() <= 0.5 + 2**bits / 2 / 256, "half a step, and what the scale itself was rounded by"
    assert rounded.scales_RG.dtype == torch.bfloat16
    nothing = round_to(torch.zeros(2, 32), widest_scales(torch.zeros(2, 32), 32, bits), bits)
    assert not nothing.dense().any()


def test_searched_scales_lose_less_than_the_widest() -> None:
    weights = torch.randn(32, 128, generator=_drawn(1)) ** 3
    gram = _inputs(128, 1).gram_CC
    plain, found = (
        round_to(weights, scales, 4).dense() - weights
        for scales in (widest_scales(weights, 64, 4), searched_scales(weights, 64, 4))
    )
    assert found.square().sum() < plain.square().sum()
    by_output = round_to(weights, searched_scales(weights, 64, 4, gram), 4).dense() - weights
    assert output_error(by_output, gram) < output_error(found, gram)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000), st.sampled_from([32, 64, 192]))
def test_gptq_loses_less_than_rounding_where_inputs_are_correlated(seed: int, group: int) -> None:
    weights, gram = torch.randn(24, 192, generator=_drawn(seed)), _inputs(192, seed).gram_CC
    plain = round_to(weights, searched_scales(weights, group, 4, gram), 4)
    found = gptq(weights, gram, group)
    assert torch.equal(found.scales_RG, plain.scales_RG), "the same layout, other codes"
    assert output_error(found.dense() - weights, gram) < 0.7 * output_error(plain.dense() - weights, gram)


def test_gptq_with_inputs_that_say_nothing_is_rounding_to_nearest() -> None:
    weights = torch.randn(8, 64, generator=_drawn(2))
    for gram in (torch.eye(64), torch.zeros(64, 64)):
        plain = round_to(weights, searched_scales(weights, 32, 4, gram), 4)
        assert torch.equal(gptq(weights, gram, 32).codes_RC, plain.codes_RC)


def test_the_factor_is_that_of_the_damped_inverse() -> None:
    gram = _inputs(48, 3).gram_CC
    upper = inverse_factor(gram).double()
    damped = gram.double() + 0.01 * gram.double().diagonal().mean() * torch.eye(48)
    assert torch.allclose(upper.T @ upper @ damped, torch.eye(48, dtype=torch.float64), atol=1e-3)
    assert not upper.tril(-1).any()


def test_columns_of_large_inputs_are_scaled_up_and_lose_less() -> None:
    drawn = _drawn(4)
    weights, x = torch.randn(32, 64, generator=drawn), torch.randn(200, 64, generator=drawn)
    x[:, :3] *= 30
    inputs = _counted(x)
    factors = column_factors(weights, inputs, 64)
    assert factors[:3].min() > factors[3:].max()
    plain = round_to(weights, widest_scales(weights, 64, 4), 4).dense()
    scaled = round_to(weights * factors, widest_scales(weights * factors, 64, 4), 4).dense() / factors
    assert output_error(scaled - weights, inputs.gram_CC) < output_error(plain - weights, inputs.gram_CC) / 2


def test_activations_with_outliers_lose_less_when_they_are_smoothed() -> None:
    drawn = _drawn(7)
    weights, x = torch.randn(32, 64, generator=drawn), torch.randn(200, 64, generator=drawn)
    x[:, :2] *= 50
    factors = smoothing_factors(weights, x.abs().amax(0))
    assert factors[:2].min() > 4 * factors[2:].max()
    expected = x @ weights.T
    plain, smooth = (_eight_bits(x / by) @ _eight_bits(weights * by).T - expected for by in (torch.ones(64), factors))
    assert smooth.square().sum() < plain.square().sum() / 4


def test_a_column_that_nothing_goes_into_is_not_smoothed_without_limit() -> None:
    weights, peaks = torch.randn(8, 16, generator=_drawn(8)), torch.ones(16)
    weights[:, 0] = peaks[1] = 0
    factors = smoothing_factors(weights, peaks)
    assert torch.isfinite(factors).all()
    assert factors.max() / factors.min() < 1e5
    assert torch.isfinite(smoothing_factors(weights, torch.zeros(16))).all()


@pytest.mark.parametrize(
    "architecture", ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "olmo3"]
)
@torch.no_grad()
def test_a_fold_changes_nothing_that_the_model_computes(architecture: str, tmp_path: Path) -> None:
    wide = {"head_dim": 16} if architecture.startswith("gemma") else {}
    changes = {"num_key_value_heads": 4} if architecture != "qwen3" else {}
    model = load_pretrained(make_foreign(tmp_path / "model", architecture, **wide, **changes)).eval()
    ids = torch.randint(10, 380, (1, 30), generator=_drawn(0))
    for name, value in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            value += 0.3 * torch.randn(value.shape, generator=_drawn(5))
    before, folded = model(ids).logits, 0
    blocks = find_blocks(model)
    for number, block in enumerate(blocks.modules):
        linears = blocks.linears(number)
        for fold in folds_of(architecture):
            feeder = block.get_submodule(fold.feeder)
            if fits(feeder, linears[fold.fed[0]]):
                factors = torch.rand(linears[fold.fed[0]].in_features, generator=_drawn(6)) + 0.5
                for layer in fold.fed:
                    linears[layer].weight *= factors
                divide(feeder, factors, architecture)
                folded += 1
    assert folded >= 2 * (2 if architecture == "olmo3" else 3)  # whose layers get inputs without a norm
    assert torch.allclose(model(ids).logits, before, atol=1e-4)


@torch.no_grad()
def test_what_goes_into_a_layer_is_what_the_blocks_before_it_make(tmp_path: Path) -> None:
    model = load_pretrained(make_foreign(tmp_path / "model", "llama")).eval()
    windows = [torch.randint(10, 380, (length,), generator=_drawn(length)).tolist() for length in (20, 20, 12)]
    seen: list[Tensor] = []
    blocks = find_blocks(model)
    handle = blocks.linears(1)["mlp.down_proj"].register_forward_pre_hook(lambda _, given: seen.append(given[0][0]))
    for ids in windows:
        model(torch.tensor([ids]))
    handle.remove()
    calibration = Calibration(model, blocks, windows, "cpu")
    assert calibration.sets(0) == [
        ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        ["self_attn.o_proj"],
        ["mlp.gate_proj", "mlp.up_proj"],
        ["mlp.down_proj"],
    ]
    calibration.advance(0)
    inputs = calibration.inputs(1, ["mlp.down_proj"])[0]
    x = torch.cat(seen)
    assert inputs.tokens == len(x) == 52
    assert torch.allclose(inputs.gram_CC, x.T @ x, atol=1e-4)
    assert torch.allclose(inputs.magnitude_C, x.abs().sum(0), atol=1e-4)


def test_groups_are_of_128_columns_or_the_largest_that_divides_the_width() -> None:
    assert groups_of({"a": 1536, "b": 576, "c": 96, "d": 40}, 4) == {"a": 128, "b": 64, "c": 32, "d": 40}
    assert groups_of({"a": 1536, "e": 172}, 8) == {"a": 1536, "e": 172}


def test_layers_are_found_by_class_by_last_name_or_by_full_name() -> None:
    assert targets_of({"l.0.up": 64, "l.0.down": 64}) == [(64, ["Linear"])]
    assert targets_of({"l.0.up": 64, "l.0.down": 128}) == [(64, [r"re:.*\.up$"]), (128, [r"re:.*\.down$"])]
    assert targets_of({"l.0.up": 64, "l.1.up": 32, "l.1.down": 32}) == [
        (64, ["l.0.up"]),
        (32, [r"re:.*\.down$", "l.1.up"]),
    ]


def test_codes_times_scales() -> None:
    codes = torch.tensor([[1, -2, 3, 4]], dtype=torch.int8)
    assert dense(codes, torch.tensor([[0.5, 2.0]])).tolist() == [[0.5, -1.0, 6.0, 8.0]]


def _eight_bits(rows: Tensor) -> Tensor:
    """A scale for each row, of a weight or of the activations."""
    return round_to(rows, widest_scales(rows, rows.shape[1], 8), 8).dense()


def _drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _inputs(width: int, seed: int) -> Inputs:
    """Inputs that lie near a space of a quarter of their dimensions."""
    drawn = _drawn(seed)
    common = torch.randn(400, width // 4, generator=drawn) @ torch.randn(width // 4, width, generator=drawn)
    return _counted(common + 0.3 * torch.randn(400, width, generator=drawn))


def _counted(x_TC: Tensor) -> Inputs:
    width = x_TC.shape[1]
    inputs = Inputs(torch.zeros(width, width), torch.zeros(width), torch.zeros(width))
    inputs.add(x_TC)
    return inputs
