"""ZeRO 3 starts and ends in the memory that it trains in: no rank holds more than its share and a parameter."""

from __future__ import annotations

from pathlib import Path

from models.presets import count_parameters
from tests.tasks.pretrain.engines.engine_child import make_spec
from tests.tasks.pretrain.engines.pair import results_of_pair
from tests.tasks.pretrain.engines.start_memory import CHANGES


def test_no_rank_of_zero_3_holds_the_whole_model_when_it_starts_or_is_gathered(tmp_path: Path) -> None:
    first, second = results_of_pair("tests.tasks.pretrain.engines.start_memory", tmp_path)
    shape = make_spec(tmp_path, {"shape": "mistral", "changes": CHANGES, "runtime": {}}).shape
    whole = 4 * count_parameters(shape)
    for rank in (first, second):
        assert whole / 2 <= rank["drawn"] < 0.6 * whole  # its half, and the parameter that is drawn
    assert second["gathered"] < 0.05 * whole
    assert first["gathered"] < 1.05 * whole  # in host memory, where the snapshot is written from
