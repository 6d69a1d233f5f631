"""A resume goes on bit for bit where the kernels repeat, from checkpoints written behind training too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.pretrain.engines import open_engine
from tasks.pretrain.world import World
from tests.gpu.test_engines import need
from tests.gpu.training import spec_on, train, weights_of


@pytest.fixture
def repeating() -> Iterator[None]:
    """Kernels whose sums have a fixed order."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("repeating")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "runtime",
    [{"engine": "ddp"}, {"engine": "fsdp"}, {"engine": "fsdp", "offload": "optimizer"}, {"engine": "deepspeed"}],
    ids=str,
)
@pytest.mark.parametrize("behind", [False, True])
def test_a_resume_is_exact(
    behind: bool, runtime: dict[str, Any], precision: str, world: World, device: str, tmp_path: Path
) -> None:
    need(runtime["engine"])
    spec = spec_on(device, runtime=runtime, precision=precision)
    engine = open_engine(spec, world)
    if behind and not engine.supports_async_save:
        pytest.skip("it can't write behind")
    train(engine, range(1, 4))
    folder = tmp_path / "step-000000003"
    folder.mkdir()
    saving = engine.save_async(folder) if behind else engine.save(folder)
    losses = train(engine, range(4, 8))
    if saving is not None:
        saving.result()
    resumed = open_engine(spec, world)
    resumed.load(folder)
    assert train(resumed, range(4, 8)) == losses
    assert torch.equal(weights_of(resumed), weights_of(engine))
