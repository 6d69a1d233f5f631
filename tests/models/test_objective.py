"""The objective and its start: the z-loss, the loss in float16, and initial weights of the documented spread."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from models.config import ModelConfig
from models.kernels.cross_entropy import IGNORED
from models.presets import LOSS_CHUNK, ModelShape, derive
from models.transformer import INIT_STD, Head, Transformer

WIDTH, VOCAB = 24, 50


def shape_of(**choices: object) -> ModelShape:
    config = {"depth": 8, "width": 256, "heads": 4, "context": 64, **choices}
    return derive(ModelConfig.model_validate(config), 400)


def head_and_batch(z_loss: float) -> tuple[Head, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    head = Head(WIDTH, VOCAB, bias=False)
    head.z_loss = z_loss
    with torch.no_grad():
        head.weight.normal_(0, 0.5, generator=generator)
    x_BTC = torch.randn(3, LOSS_CHUNK // 2, WIDTH, generator=generator)
    targets_BT = torch.randint(0, VOCAB, x_BTC.shape[:2], generator=generator)
    targets_BT[:, ::4] = IGNORED
    return head, x_BTC.requires_grad_(), targets_BT


@pytest.mark.parametrize("z_loss", [0.0, 1e-4, 0.3])
def test_the_z_loss_is_learned_and_not_reported(z_loss: float) -> None:
    head, x_BTC, targets_BT = head_and_batch(z_loss)
    loss = head(x_BTC, targets_BT)
    loss.backward()
    plain_BTC, weight_VC = x_BTC.detach().double().requires_grad_(), head.weight.detach().double().requires_grad_()
    logits_NV, targets_N = (plain_BTC @ weight_VC.T).flatten(0, 1), targets_BT.flatten()
    cross_entropy = F.cross_entropy(logits_NV, targets_N, ignore_index=IGNORED)
    log_z_N = logits_NV.logsumexp(-1)[targets_N != IGNORED]
    (cross_entropy + z_loss * (log_z_N**2).mean()).backward()
    assert loss.item() == pytest.approx(cross_entropy.item(), abs=1e-6)
    for found, expected in ((x_BTC.grad, plain_BTC.grad), (head.weight.grad, weight_VC.grad)):
        assert found is not None
        assert expected is not None
        assert (found.double() - expected).abs().max() < 1e-6 * expected.abs().max() + 1e-9


def test_in_float16_the_gradient_of_the_loss_is_not_rounded_away() -> None:
    tokens = 1_024
    head = Head(2, 64, bias=False)
    with torch.no_grad():
        head.weight[:32], head.weight[32:] = 0, torch.tensor([-8.0, 1.0])  # the second half are unlikely words
    x_BTC = torch.tensor([1.0, 0.0]).repeat(1, tokens, 1).requires_grad_()
    with torch.autocast("cpu", torch.float16):
        loss = head(x_BTC, torch.arange(tokens)[None] % 32)
    (loss * 65_536).backward()
    assert x_BTC.grad is not None
    likelihood = math.exp(-8) / (32 + 32 * math.exp(-8))
    assert likelihood / tokens < 2**-25 < likelihood  # what float16 rounds to 0
    expected = torch.tensor(32 * likelihood / tokens)
    assert torch.allclose(x_BTC.grad[..., 1] / 65_536, expected, rtol=0.02)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize(("base", "depth"), [(None, None), (256, None), (64, None), (None, 2), (64, 2)])
def test_initial_weights_have_the_spread_that_is_stated(family: str, base: int | None, depth: int | None) -> None:
    shape = shape_of(family=family, tie_embeddings=False)
    model = Transformer(shape, torch.Generator().manual_seed(0), mup_base_width=base, mup_base_depth=depth)
    wider = 1.0 if base is None else 256 / base
    seen = set()
    for name, parameter in model.named_parameters():
        kind = name.split(".")[-2]
        seen.add(kind)
        if "norm" in kind:
            expected = 0.0 if name.endswith("bias") else 1 / wider if name == "norm.weight" else 1.0
            assert parameter.unique().tolist() == [expected], name
        elif name.endswith("bias"):
            assert not parameter.any(), name
        else:
            of_depth = math.sqrt(2 * 8) if depth is None else math.sqrt(2 * depth) * 8 / depth
            residual = of_depth if kind in ("output", "down") else 1.0
            inside = math.sqrt(wider) if name.startswith("blocks.") else 1.0
            assert float(parameter.std()) == pytest.approx(INIT_STD / residual / inside, rel=0.03), name
            assert abs(float(parameter.mean())) < 0.05 * INIT_STD, name
    assert {"embedding", "head", "qkv", "output", "up", "down", "attention_norm", "norm"} <= seen


def test_at_its_base_mup_changes_no_bit() -> None:
    plain, mup = (
        Transformer(shape_of(), torch.Generator().manual_seed(0), mup_base_width=width, mup_base_depth=depth)
        for width, depth in ((None, None), (256, 8))
    )
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), mup.parameters(), strict=True))


@pytest.mark.parametrize("half", [None, torch.bfloat16, torch.float16])
def test_a_batch_without_targets_has_no_part_in_a_step(half: torch.dtype | None) -> None:
    head, x_BTC, targets_BT = head_and_batch(0.0)
    with torch.autocast("cpu", half or torch.bfloat16, enabled=half is not None):
        loss = head(x_BTC, torch.full_like(targets_BT, IGNORED))
    loss.backward()
    assert loss.item() == 0
    for gradient in (x_BTC.grad, head.weight.grad):
        assert gradient is not None
        assert not gradient.any()
