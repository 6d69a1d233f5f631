"""Gradients against float64: a loss can be right where they are not."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from models.transformer import Transformer
from tasks.pretrain.engines.compiled import compile_blocks
from tests.gpu.test_engines import SHAPES
from tests.gpu.training import batch_of, spec_on, whole_loss

FLOAT32, BFLOAT16 = 1e-5, 3e-2  # norm of the difference over norm


def distance(found: Transformer, exact: Transformer) -> float:
    """Of all gradients together, relative."""
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
    spec = spec_on(device, model=SHAPES[shape])
    exact = Transformer(spec.shape).double()
    found: Any = copy.deepcopy(exact).float().to(device)
    batch = batch_of(1, isolated=isolated)
    whole_loss(exact, batch).backward()
    if how == "default":
        compile_blocks(found, how)
    elif how != "eager":
        found.recompute = how
    given = [None if part is None else torch.from_numpy(part.copy()).to(device) for part in batch]
    with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
        found(*given).backward()
    assert distance(found, exact) < (FLOAT32 if precision == "float32" else BFLOAT16)
