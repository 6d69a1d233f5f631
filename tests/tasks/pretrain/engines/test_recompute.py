"""Recomputation under FSDP, which frees the gathered weights between a block's two forward passes."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.pretrain.engines.fsdp import FsdpEngine
from tests.runtimes import runtime_of
from tests.tasks.pretrain.one_process import ALONE, micro_batches, one_process, open_ddp, rows, spec_of

__all__ = ["one_process"]  # the fixture


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_is_made_again_is_the_same(stage: int, recompute: str) -> None:
    plain, spec = open_ddp(micro_batch=4), spec_of(micro_batch=4, engine="fsdp")
    changes: dict[str, Any] = {"zero_stage": stage, "recompute": recompute}
    engine = FsdpEngine(spec.model_copy(update={"runtime": runtime_of(spec.runtime, **changes)}), ALONE)
    assert engine.model.recompute == recompute
    for step in range(1, 4):
        batches = micro_batches(rows(step), 4)
        (expected, norm), (loss, again) = plain.step(batches, 0.01), engine.step(batches, 0.01)
        assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
        assert again.item() == pytest.approx(norm.item(), abs=1e-4)
