"""Precisions that a CPU can only try out: float8 by torchao learns, and the pre-flight says what is slow."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from models.presets import Recompute
from models.transformer import Head
from tasks.pretrain.preflight.machine import judge_device
from tasks.pretrain.recipe.precision import prepare
from tests.tasks.pretrain.one_process import micro_batches, one_process, open_ddp, rows

__all__ = ["one_process"]  # the fixture


def losses(name: str, recompute: Recompute = "none") -> list[float]:
    """The losses of ten steps on one batch, with products in `name`, and everything else as in bfloat16."""
    engine = open_ddp(precision="bfloat16")
    engine.model.recompute = recompute
    prepare(engine.model, name)
    converted = [module for module in engine.model.modules() if type(module).__name__ == "Float8Linear"]
    linear = [each for each in engine.model.modules() if isinstance(each, nn.Linear) and not isinstance(each, Head)]
    assert converted == (linear if name == "float8" else [])
    batch = micro_batches(rows(1), 8)
    return [engine.step(batch, 0.01)[0].item() for _ in range(10)]


@pytest.mark.soak_but("none")
@pytest.mark.skipif(find_spec("torchao") is None, reason="torchao is not installed: pip install 'gristmill[float8]'")
@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_float8_learns_what_bfloat16_learns(recompute: Recompute) -> None:
    expected, found = losses("bfloat16"), losses("float8", recompute)
    assert found == pytest.approx(expected, rel=0.01)
    assert found[-1] < 0.8 * found[0]
    assert found != expected


def test_what_the_device_has_no_units_for_is_told() -> None:
    def state(chosen: str, *, cuda: bool = True, bf16: bool = True, compiled: bool = False) -> str:
        return judge_device("one", chosen, cuda=cuda, bf16=bf16, compiled=compiled).state

    assert state("bfloat16") == state("float16") == state("float8", compiled=True) == "passed"
    assert state("bfloat16", bf16=False) == state("float8") == "advice"
    assert state("float16", bf16=False) == "passed"  # older GPUs have that
    assert state("float16", cuda=False, bf16=False) == state("bfloat16", cuda=False, bf16=False) == "advice"
    assert state("float32", cuda=False, bf16=False) == "passed"
    assert "runtime.pretrain.compile" in str(judge_device("one", "float8", cuda=True, bf16=True, compiled=False).remedy)


def test_tf32_is_switched_on_by_its_name_alone() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        for name, expected in (("float32", "highest"), ("tf32", "high")):
            prepare(nn.Linear(16, 16), name)
            assert torch.get_float32_matmul_precision() == expected
    finally:
        torch.set_float32_matmul_precision(before)
