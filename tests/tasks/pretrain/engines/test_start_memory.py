"""A run starts and ends in the memory that the plan says, with every engine: if weights are sharded, only the first
rank ever holds the whole model, when it gathers it."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.activations import Precision
from models.memory import Setup, ends, memory_of_ends, training
from models.presets import count_parameters
from tests.tasks.pretrain.engines.engine_child import make_spec
from tests.tasks.pretrain.engines.pair import results_of_pair
from tests.tasks.pretrain.engines.start_memory import BUCKET, CHANGES, ENGINES

PRECISIONS: dict[str, Precision] = {"float32": "float32", "bfloat16": "mixed"}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, int]]]:
    found: list[dict[str, dict[str, int]]] = results_of_pair(
        "tests.tasks.pretrain.engines.start_memory", tmp_path_factory.mktemp("pair")
    )
    return found


@pytest.mark.soak
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ENGINES)
def test_the_peaks_of_starting_and_ending_are_those_of_the_plan(
    name: str, precision: str, ranks: list[dict[str, dict[str, int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "REDUCE_BUCKET", BUCKET)
    monkeypatch.setattr(training, "REDUCE_BUCKET", BUCKET)
    spec = make_spec(Path(), {"shape": "mistral", "changes": CHANGES, "runtime": ENGINES[name]})
    setup = Setup(
        engine=spec.runtime.pretrain.engine,
        zero_stage=spec.runtime.pretrain.zero_stage,
        precision=PRECISIONS[precision],
        devices=2,
        cuda=False,
    )
    told, whole = memory_of_ends(spec.own_shape, setup), 4 * count_parameters(spec.shape)
    first, second = (rank[f"{name}, {precision}"] for rank in ranks)
    for rank in (first, second):
        assert rank["start"] == pytest.approx(told.start.device, rel=0.04)
    assert first["end"] == pytest.approx(told.end.device + whole, rel=0.02)  # not yet in the format of transformers
    assert second["end"] <= 1.02 * told.end.device
