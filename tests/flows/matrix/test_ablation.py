"""Matrices on real text: what arms share is made once, trainings go on side by side, and bad arms are given up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.matrix.ablation import compared
from flows.matrix.arms import matrix_of
from flows.session import session_of
from storage import refs
from storage.store import Store
from tasks.stage.session import open_session
from tests.flows.commands.test_cli import gristmill
from tests.flows.small import SMALL
from tests.pipeline.runs import finish, start

SETS = (*SMALL, "tokenize.validation_share=0.4", "download.benchmark_items=8", "runtime.compute.threads=1")
VARIED = "filter.language=null"


def made(store: Path) -> dict[str, int]:
    """How many artifacts a store has, by stage."""
    stages = [location.partition("/")[0] for location in Store(str(store)).locations()]
    return {stage: stages.count(stage) for stage in ("download", "dedup", "filter", "tokenize", "pretrain")}


def effects(store: Path) -> dict[str, Any]:
    (path,) = (store / "artifacts/ablate").glob("*/effects.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_matrix_shares_what_it_can_and_compares_its_models(tmp_path: Path) -> None:
    store = tmp_path / "store"
    sets = [*SETS, f"runtime.store={store}"]

    def planned() -> str:
        given = (f"--set={one}" for one in sets)
        return gristmill("ablate", "smoke", "--vary", VARIED, "--seeds", "2", "--plan", *given).stdout

    before = planned()
    assert "12 of 12 artifacts to make" in before
    assert "The noise of seeds isn't known yet" in before
    matrix = matrix_of("smoke", sets, [VARIED], 2)
    session = session_of(matrix.reference, matrix.link)
    with open_session(
        replace(session, call=lambda stage, config, inputs: stage.materialize(config, inputs)[0])
    ) as opened:
        compared(matrix, opened)
    assert made(store) == {"download": 1, "dedup": 1, "filter": 2, "tokenize": 2, "pretrain": 4}
    named = {"smoke/ablate", "smoke/pretrain", "smoke-filter-language-null-seed-1/pretrain"}
    assert named <= set(refs.names(Store(str(store))))
    found = effects(store)
    assert [arm["name"] for arm in found["arms"]] == ["smoke", VARIED]
    assert {"held-out text", "arc_easy: right answers"} <= {one["name"] for one in found["measures"]}
    after = planned()
    assert "Nothing to make" in after
    assert "Seeds that a difference needs" in after


@pytest.mark.soak
def test_a_matrix_of_the_command_goes_on_after_a_kill_and_gives_up_hopeless_arms(tmp_path: Path) -> None:
    store = tmp_path / "store"
    rates = "pretrain.learning_rate=[1e-6, 2e-6, 5e-3, 900]"
    words = ("--vary", rates, "--seeds", "2", "--jobs", "2", "--halve")
    sets = (*SETS, "pretrain.steps=40")
    process = start(store, *words, sets=sets, command="ablate")
    assert process.stdout is not None
    for line in process.stdout:
        if "40 steps" in line:
            break
    process.kill()
    process.communicate()
    said = finish(start(store, *words, sets=sets, command="ablate"))
    assert "given up after 25% of the steps" in said
    assert [arm["name"] for arm in effects(store)["arms"]] == ["smoke", "pretrain.learning_rate=0.005"]
    assert "pretrain.learning_rate=1e-06" in effects(store)["stopped"]
    assert [*effects(store)["diverged"]] == ["pretrain.learning_rate=900"], "after a quarter of the steps"
    assert "Result: " in said
    assert "made in" not in finish(start(store, *words, sets=sets, command="ablate"))
