"""Gradients of many micro-batches in bfloat16 are summed in float32 by every engine, so that they are as good as those
of one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tasks.posttrain.accumulation import ENGINES, gradients, make_inputs
from tests.tasks.pretrain.engines.pair import results_of_pair


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES)
def test_64_micro_batches_in_bfloat16_cost_no_more_than_their_forward_passes(engine: str, tmp_path: Path) -> None:
    make_inputs(tmp_path)
    exact = gradients(tmp_path / "exact", "float32", {})
    (tmp_path / engine).mkdir()
    names = results_of_pair("tests.tasks.posttrain.accumulation", tmp_path / engine)
    found = torch.load(tmp_path / engine / "gradients.pt", weights_only=True)
    assert names == sorted(exact)
    apart = sum(float((found[name].view_as(exact[name]) - exact[name]).square().sum()) for name in exact)
    distance = (apart / sum(float(each.square().sum()) for each in exact.values())) ** 0.5
    print(engine, distance)
    assert distance < 0.006
