"""FSDP beside what else happens in a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor

from tasks.pretrain.engines import open_engine
from tasks.pretrain.engines.fsdp import FsdpEngine
from tasks.pretrain.insight.layers import LayerStats
from tasks.pretrain.insight.probe import probe
from tasks.pretrain.world import World
from tests.tasks.training import RUNTIME, alone, make_spec


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with alone() as found:
        yield found


@pytest.mark.parametrize("zero_stage", [0, 3])
def test_layers_are_looked_at_after_a_validation_and_after_a_look(
    zero_stage: int, world: World, tmp_path: Path
) -> None:
    spec = make_spec(tmp_path)
    engine = open_engine(
        spec.model_copy(update={"runtime": RUNTIME.model_copy(update={"engine": "fsdp", "zero_stage": zero_stage})}),
        world,
    )
    assert isinstance(engine, FsdpEngine)
    ids = torch.randint(0, spec.shape.vocab_size, (4, 33), generator=torch.Generator().manual_seed(0))
    batch = (ids[:, :-1], ids[:, 1:], None)
    layers = LayerStats(engine.model)
    for _ in range(2):
        engine.loss(*batch[:2])
        assert all(isinstance(parameter, DTensor) for parameter in engine.model.parameters())
        layers.start()
        engine.step([batch], 1e-2)
        found = layers.stop()
        assert all(found[name]["update_ratio"] > 0 for name in ("embedding", "blocks.1.attention", "norm"))
        probe(engine.model, batch[0], None)
