"""How every engine begins: with all weights set, and with a first step of full size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from models.convert import shape_of
from models.pretrained import load_config
from models.transformer import Transformer
from tasks.pretrain.engines import open_engine
from tasks.pretrain.world import World
from tests.tasks.pretrain.engines.engine_child import SHAPES, make_spec, micro_batches
from tests.tasks.pretrain.tiny_training import alone
from tests.tasks.tiny_model import make_model

# DeepSpeed keeps the groups of a process's first world, so its engines have processes of their own (test_engines.py)
ENGINES: list[dict[str, Any]] = [{"engine": "ddp"}, {"engine": "fsdp", "zero_stage": 3}]
RATE = 1e-3


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with alone() as found:
        yield found


@pytest.fixture
def _nan_where_nothing_is_set() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(2).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_nan_where_nothing_is_set")
@pytest.mark.parametrize("runtime", ENGINES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_weight_of_every_family_is_set(shape: str, runtime: dict[str, Any], world: World, tmp_path: Path) -> None:
    spec = make_spec(tmp_path, {"shape": shape, "runtime": runtime})
    torch.manual_seed(spec.config.seed)
    expected = Transformer(spec.own_shape).state_dict()
    model = open_engine(spec, world).whole_model()
    assert model is not None
    found = model.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("runtime", ENGINES, ids=str)
def test_the_first_step_from_a_base_is_of_full_size(runtime: dict[str, Any], world: World, tmp_path: Path) -> None:
    base = make_model(tmp_path / "base", context=32)
    spec = make_spec(tmp_path, {"shape": "llama", "runtime": runtime, "config": {"weight_decay": 0.0}})
    spec = spec.model_copy(update={"base": base, "shape": shape_of(load_config(base))})
    engine = open_engine(spec, world)
    before = engine.whole_model()
    engine.step(micro_batches(engine, 1, isolated=False), RATE)
    after = engine.whole_model()
    assert before is not None
    assert after is not None
    # Adam's bias correction makes the first step one of the rate in every weight (Kingma & Ba 2015, section 2.1)
    moved = [(new - old).abs().max().item() for new, old in zip(after.parameters(), before.parameters(), strict=True)]
    assert moved == pytest.approx([RATE] * len(moved), rel=1e-2)
