"""FSDP: beside the other parts of a run, and in groups that each hold all shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from models.config import ModelConfig
from models.memory import Setup, training_memory
from models.presets import derive
from tasks.pretrain.engines import open_engine
from tasks.pretrain.engines.fsdp import FsdpEngine
from tasks.pretrain.insight.layers import LayerStats
from tasks.pretrain.insight.probe import probe
from tasks.pretrain.world import World
from tests.runtimes import runtime_of
from tests.tasks.pretrain.engines.test_engines import TOLERANCE, Results, case, launch, names
from tests.tasks.pretrain.engines.test_engines import test_another_engine_or_number_of_processes_goes_on as goes_on
from tests.tasks.pretrain.tiny_training import RUNTIME, alone, make_spec


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
        spec.model_copy(update={"runtime": runtime_of(RUNTIME, engine="fsdp", zero_stage=zero_stage)}), world
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


HYBRID = [
    case("one llama", 1),
    case("hybrid", 4, engine="fsdp", replicate=2, micro_batch=1),
    case("hybrid 3", 4, engine="fsdp", replicate=2, zero_stage=3, micro_batch=1),
    case("hybrid × tensor", 4, engine="fsdp", replicate=2, tensor_parallel=2),
    case("fsdp after hybrid", 4, source="hybrid", engine="fsdp"),
    case("hybrid after fsdp × tensor", 4, source="hybrid × tensor", engine="fsdp", replicate=2, micro_batch=1),
    case("uneven", 4, engine="fsdp", replicate=3) | {"named": "replicate is 3, but there are 4 processes"},
    case("ddp", 4, engine="ddp", replicate=2) | {"named": "runtime.pretrain.replicate is 2, which the engine ddp"},
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return launch(tmp_path_factory.mktemp("hybrid"), HYBRID, 4)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["hybrid", "hybrid 3", "hybrid × tensor"])
def test_groups_that_share_learn_what_one_process_learns(name: str, results: Results) -> None:
    found, expected = results[name], results["one llama"]
    assert found["losses"] == pytest.approx(expected["losses"], abs=TOLERANCE)
    assert found["norms"] == pytest.approx(expected["norms"], abs=5 * TOLERANCE)
    assert found["validation"] == pytest.approx(expected["validation"], abs=TOLERANCE)
    assert found["whole"] == pytest.approx(found["validation"], abs=TOLERANCE)
    assert found["resumed_alike"]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["fsdp after hybrid", "hybrid after fsdp × tensor"])
def test_states_of_groups_are_those_of_any_engine(name: str, results: Results) -> None:
    goes_on(name, results)


@pytest.mark.soak
@pytest.mark.parametrize("refused", HYBRID[-2:], ids=names(HYBRID[-2:]))
def test_groups_that_cant_be_are_refused_by_name(refused: dict[str, Any], results: Results) -> None:
    assert results[refused["name"]]["error"] == "ConfigError"
    assert refused["named"] in results[refused["name"]]["message"]


def test_the_plan_counts_the_shares_of_a_group() -> None:
    shape = derive(ModelConfig(depth=4, width=256, heads=4, context=64), 512)
    alone, groups, all_share = (
        training_memory(shape, Setup(engine="fsdp", devices=devices, replicate=replicate))
        for devices, replicate in ((4, 1), (8, 2), (8, 1))
    )
    assert groups == alone
    assert groups.optimizer > 1.9 * all_share.optimizer
