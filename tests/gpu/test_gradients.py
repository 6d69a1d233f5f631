"""Gradients against float64: a loss can be right while they are wrong."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from models.kernels.cross_entropy import IGNORED
from models.presets import LOSS_CHUNK, LOSS_CHUNK_CUDA
from models.transformer import Head, Transformer
from tasks.pretrain.engines.native import compile_blocks
from tests.gpu.test_engines import SHAPES
from tests.gpu.training import batch_of, spec_on, whole_loss

CONTEXT = 512  # several blocks of attention
FLOAT32, BFLOAT16 = 1e-5, 3e-2  # norm of the difference over norm
HALVES = {torch.bfloat16: 1e-2, torch.float16: 2e-3}  # of the loss only


def distance(found: Transformer, exact: Transformer) -> float:
    """The relative error of all gradients together."""
    pairs = zip(found.parameters(), exact.parameters(), strict=True)
    apart = whole = 0.0
    for one, other in pairs:
        assert one.grad is not None
        assert other.grad is not None
        apart += float((one.grad.double().cpu() - other.grad).square().sum())
        whole += float(other.grad.square().sum())
    return math.sqrt(apart / whole)


@pytest.mark.parametrize("how", ["eager", "default", "selective", "full"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_float64(shape: str, isolated: bool, precision: str, how: str, device: str) -> None:
    if how == "default" and (device == "cpu" or precision == "float32"):
        pytest.skip("what is compiled takes long, and is for a GPU in bfloat16")
    torch.manual_seed(0)
    spec = spec_on(device, model={**SHAPES[shape], "context": CONTEXT})
    exact = Transformer(spec.own_shape).double()
    found: Any = copy.deepcopy(exact).float().to(device)
    batch = batch_of(1, tokens=CONTEXT, isolated=isolated)
    whole_loss(exact, batch).backward()
    if how == "default":
        compile_blocks(found, how)
    elif how != "eager":
        found.recompute = how
    given = [None if part is None else torch.from_numpy(part.copy()).to(device) for part in batch]
    with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
        found(*given).backward()
    assert distance(found, exact) < (FLOAT32 if precision == "float32" else BFLOAT16)


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("words", [50_257, 32_768])
def test_the_loss_of_any_number_of_words_is_that_of_float64(words: int, half: torch.dtype, device: str) -> None:
    tokens = (LOSS_CHUNK_CUDA if device == "cuda" else LOSS_CHUNK) + 77  # one chunk, and a shorter one
    generator = torch.Generator().manual_seed(0)
    head = Head(128, words, bias=False)
    with torch.no_grad():
        head.weight.copy_((torch.randn(words, 128, generator=generator) / 6).to(half))
    x_BTC = torch.randn(1, tokens, 128, generator=generator).to(half).float().to(device).requires_grad_()
    targets_BT = torch.randint(words, (1, tokens), generator=generator)
    targets_BT[:, ::5] = IGNORED
    head, targets_BT = head.to(device), targets_BT.to(device)
    scale = 65_536.0 if half == torch.float16 else 1.0  # the loss scale
    with torch.autocast(device, half):
        loss = head(x_BTC, targets_BT)
    found = torch.autograd.grad(loss * scale, (x_BTC, head.weight))
    x_NC, weight_VC = (part.detach().double().requires_grad_() for part in (x_BTC[0], head.weight))
    exact = torch.nn.functional.cross_entropy(x_NC @ weight_VC.T, targets_BT[0], ignore_index=IGNORED)
    assert float(loss) == pytest.approx(float(exact), rel=HALVES[half] / 10)
    for one, other in zip(found, torch.autograd.grad(exact, (x_NC, weight_VC)), strict=True):
        assert (one.view_as(other).double() / scale - other).norm() < HALVES[half] * other.norm()
