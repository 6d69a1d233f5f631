"""An engine in this process, over rows that follow from a step's number, for tests of the recipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from models.presets import derive
from tasks.pretrain import PretrainConfig
from tasks.pretrain.engines import Engine, MicroBatch
from tasks.pretrain.engines.ddp import DdpEngine
from tasks.pretrain.loader.batch import Batch, isolate
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World
from tests.runtimes import runtime_of

ALONE = World(0, 1, torch.device("cpu"))
VOCAB, EOS_ID = 64, 0
MODEL = {"depth": 2, "width": 32, "heads": 2, "kv_heads": 1, "feed_forward": 64, "context": 16}


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    """Join as a run of one process, without leaving variables in the environment. One thread: on a busy machine
    two are far slower."""
    torch.set_num_threads(1)
    if "deepspeed" in sys.modules:  # it keeps the groups of an earlier file
        from deepspeed.comm import comm
        from deepspeed.utils import groups

        comm.cdb = None
        groups._release_process_group_references()
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def spec_of(*, micro_batch: int | None = None, engine: str = "ddp", device: str = "cpu", **choices: Any) -> TrainSpec:
    """The spec of a child, of a tiny model."""
    config = PretrainConfig.model_validate({"model": MODEL, **choices})
    nowhere = Path("nowhere")
    return TrainSpec(
        config=config,
        runtime=runtime_of(threads=1, device=device, engine=engine, micro_batch=micro_batch),
        shape=derive(config.new_model, VOCAB),
        steps=100,
        tokens_digest="",
        tokenizer_digest="",
        train=[],
        validation=[],
        tokenizer=nowhere,
        scratch=nowhere,
        out=nowhere,
    )


def open_ddp(**choices: Any) -> DdpEngine:
    """An engine of one process, the tests' own."""
    return DdpEngine(spec_of(**choices), ALONE)


def rows(step: int, *, size: int = 8, tokens: int = 16, isolated: bool = False) -> Batch:
    """Rows in which a token is mostly the previous one plus one. Documents are of very different lengths."""
    generator = np.random.default_rng(step)
    ids = (generator.integers(1, VOCAB, (size, 1)) + np.arange(tokens + 1)) % (VOCAB - 1) + 1
    ids[0, 1::2] = EOS_ID
    ids[1, 5] = EOS_ID
    batch = Batch(ids[:, :-1], ids[:, 1:])
    return isolate(batch, EOS_ID) if isolated else batch


def micro_batches(batch: Batch, size: int) -> list[MicroBatch]:
    """The rows of a batch, `size` at a time."""

    def tensor(part: Any, start: int) -> Tensor:
        return torch.from_numpy(part[start : start + size])

    return [
        (
            tensor(batch.ids, start),
            tensor(batch.targets, start),
            None if batch.positions is None else tensor(batch.positions, start),
        )
        for start in range(0, len(batch.ids), size)
    ]


def train(engine: Engine, steps: range, *, rate: float = 0.01, micro: int = 8, isolated: bool = False) -> list[float]:
    """The losses of some steps."""
    return [engine.step(micro_batches(rows(step, isolated=isolated), micro), rate)[0].item() for step in steps]


def weights_of(engine: DdpEngine) -> Tensor:
    """All weights in a row."""
    return torch.cat([parameter.detach().flatten().clone() for parameter in engine.model.parameters()])
