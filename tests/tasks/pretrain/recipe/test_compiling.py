"""Whether compiling pays, by the work of the whole training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.pretrain.recipe.compiling import Compiling, compiling
from tasks.pretrain.spec import TrainSpec
from tests.runtimes import runtime_of
from tests.tasks.pretrain.one_process import spec_of

LONG = 10**9  # steps


def decided(spec: TrainSpec, steps: int = LONG, *, cuda: bool = False) -> Compiling:
    return compiling(spec.config, spec.trained_shape, steps, spec.runtime, cuda=cuda)


def of(**runtime: Any) -> TrainSpec:
    spec = spec_of()
    return spec.model_copy(update={"runtime": runtime_of(spec.runtime, **runtime)})


def test_a_training_is_compiled_from_the_length_on_at_which_that_saves_more_than_it_takes() -> None:
    spec = of()
    pays = [decided(spec, 10**power).pays for power in range(1, 10)]
    assert pays == sorted(pays)
    assert (pays[0], pays[-1]) == (False, True)
    assert decided(spec, 10).why.startswith("it would save about 0")


def test_more_processes_take_longer_to_repay_it_whatever_machine_has_them() -> None:
    shortest = [
        next(power for power in range(64) if decided(of(processes=processes), 2**power).pays) for processes in (1, 8)
    ]
    assert shortest[1] == shortest[0] + 3


@pytest.mark.parametrize(
    ("runtime", "why"),
    [
        ({"engine": "fsdp"}, "the engine ddp"),
        ({"engine": "deepspeed", "zero_stage": 1}, "zero_stage 0"),
        ({"tensor_parallel": 2}, "whole models"),
        ({"branches": True}, "share their branches"),
    ],
    ids=str,
)
def test_what_auto_never_compiles(runtime: dict[str, Any], why: str) -> None:
    pays, reason = decided(of(**runtime))
    assert not pays
    assert why in reason


def test_a_gpu_or_no_compiler_leaves_it_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert decided(of(), cuda=True) == Compiling(False, "auto is for CPUs")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not decided(of()).pays
