"""FSDP in one process: it has nothing to share, and still copies the weights that it multiplies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from models.activations import Precision
from models.memory import Setup, training_memory
from tests.models.engine_memory import SHAPE, held_by_fsdp


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
    torch.set_num_threads(threads)


@pytest.mark.soak_but("mixed-3")
@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_alone_it_copies_too(stage: int, precision: Precision) -> None:
    measured = held_by_fsdp(SHAPE, stage, precision == "mixed")
    setup = Setup(engine="fsdp", zero_stage=stage, precision=precision, cuda=False)
    told = training_memory(SHAPE, setup)
    assert measured["held"] == pytest.approx(told.weights + told.gradients + told.optimizer, rel=0.02)
    assert measured["peak"] == pytest.approx(told.total, rel=0.05)
