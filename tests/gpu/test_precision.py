"""Precisions of GPUs only, and the loss scale that float16 needs."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch

from tasks.pretrain.engines import open_engine
from tasks.pretrain.engines.native import NativeEngine
from tasks.pretrain.world import World
from tests.gpu.training import expected, learned, spec_on, train, weights_of

pytestmark = pytest.mark.usefixtures("cuda")
STEPS = 8


def test_tf32_learns_what_float32_learns(world: World, device: str) -> None:
    spec = spec_on(device, precision="tf32")
    try:
        assert learned(spec, world, STEPS) == pytest.approx(expected(spec, STEPS), abs=0.01)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_loss_scale_that_overflows_costs_a_step_and_is_lowered(world: World, device: str) -> None:
    engine = open_engine(spec_on(device, precision="float16"), world)
    assert isinstance(engine, NativeEngine)
    engine.scaler = torch.amp.GradScaler(device, init_scale=2.0**60)
    before, losses, norms = weights_of(engine), [], []
    for step in range(1, 4):
        losses += train(engine, range(step, step + 1))
        norms.append(engine.scaler.get_scale())
    assert norms == [2.0**59, 2.0**58, 2.0**57]
    assert torch.equal(weights_of(engine), before), "a step was taken with gradients that had overflowed"
    assert all(math.isfinite(loss) for loss in losses)


def test_float8_learns_what_bfloat16_learns(world: World, device: str) -> None:
    if importlib.util.find_spec("torchao") is None:
        pytest.skip("torchao is not installed")
    compiled = {"engine": "ddp", "compile": "default"}
    losses = [
        learned(spec_on(device, precision=name, runtime=compiled), world, STEPS) for name in ("float8", "bfloat16")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=0.1)
