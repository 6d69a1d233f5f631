"""With deterministic kernels a resume goes on bit for bit, also from checkpoints written during training."""

from __future__ import annotations

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
    torch.use_deterministic_algorithms(True)  # warn_only would not reach attention
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
@pytest.mark.parametrize("isolated", [False, True])
def test_a_resume_is_exact(
    isolated: bool, behind: bool, runtime: dict[str, Any], precision: str, world: World, device: str, tmp_path: Path
) -> None:
    need(runtime["engine"])
    model = {"context": 512}  # so that attention sums over several blocks
    spec = spec_on(device, runtime=runtime, precision=precision, model=model, isolate_documents=isolated)
    engine = open_engine(spec, world)
    if behind and not engine.supports_async_save:
        pytest.skip("it can't write behind")
    train(engine, range(1, 4), isolated=isolated)
    folder = tmp_path / "step-000000003"
    folder.mkdir()
    saving = engine.save_async(folder) if behind else engine.save(folder)
    losses = train(engine, range(4, 8), isolated=isolated)
    if saving is not None:
        saving.result()
    resumed = open_engine(spec, world)
    resumed.load(folder)
    assert train(resumed, range(4, 8), isolated=isolated) == losses
    assert torch.equal(weights_of(resumed), weights_of(engine))
