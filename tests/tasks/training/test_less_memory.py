"""A training that runs out of memory resumes with less in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage.errors import LostProcess, OutOfMemory
from tasks.children.spec import ChildSpec
from tasks.stage.output import Output
from tasks.training.batches import BatchShare
from tasks.training.recovery.less_memory import run_with_less
from tests.runtimes import runtime_of


def spec_at(folder: Path) -> ChildSpec:
    return ChildSpec(runtime=runtime_of(), scratch=folder / "scratch", out=folder / "out")


def test_it_takes_fewer_rows_then_recomputes_and_then_says_that_memory_ran_out(tmp_path: Path) -> None:
    tried: list[tuple[int | None, str]] = []
    out = Output.at(tmp_path)

    def never(spec: ChildSpec) -> dict[str, Any]:
        tried.append((spec.runtime.posttrain.micro_batch, spec.runtime.posttrain.recompute))
        raise OutOfMemory("Full.", "Buy more.")

    with pytest.raises(OutOfMemory, match="Full"):
        run_with_less(spec_at(tmp_path), out, BatchShare(12, 1), never)
    assert tried == [(None, "none"), (6, "none"), (3, "none"), (1, "none"), (1, "full")], "each divides 12 rows"


def test_it_ends_where_it_fits_and_counts(tmp_path: Path) -> None:
    out = Output.at(tmp_path)

    def fits(spec: ChildSpec) -> dict[str, Any]:
        if spec.runtime.posttrain.micro_batch != 2:
            raise OutOfMemory("Full.", "Buy more.")
        return {"done": True}

    assert run_with_less(spec_at(tmp_path), out, BatchShare(4, 8), fits) == {"done": True}
    assert out.facts == {"out_of_memory": 1}


def test_a_process_that_is_lost_for_another_reason_is_not_tried_again(tmp_path: Path) -> None:
    tried = []

    def lost(spec: ChildSpec) -> dict[str, Any]:
        tried.append(spec)
        raise LostProcess("Gone.", "Look.", how="hung")

    with pytest.raises(LostProcess):
        run_with_less(spec_at(tmp_path), Output.at(tmp_path), BatchShare(4, 1), lost)
    assert len(tried) == 1
