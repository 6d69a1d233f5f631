"""A whole ladder on real text: data is made once, longer trainings branch, and plans predict by the law."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flows.matrix.ladder import AskedLadder, ladder_of
from flows.matrix.scaling import fitted
from flows.session import session_of
from storage import refs
from storage.store import Store
from tasks.ablate.scaling import read_law
from tasks.stage.session import open_session
from tests.flows.commands.test_cli import gristmill
from tests.flows.small import SMALL
from tests.pipeline.runs import finish, start

SETS = (
    *SMALL,
    "download.sources=[{kind: embedded, corpora: [encyclopedia], limit: 900}]",
    "download.benchmarks=[]",
    "tokenize.validation_share=0.1",
    "pretrain.model.heads=4",
    "pretrain.model.kv_heads=2",
    "pretrain.learning_rate=1e-2",
    "runtime.pretrain.engine=ddp",
    "runtime.compute.threads=1",
)
BUDGETS, SIZES = [5e9, 1e10, 2e10], [16, 32, 48]


@pytest.mark.soak
def test_a_ladder_branches_and_plans_predict_by_its_law(tmp_path: Path) -> None:
    store = tmp_path / "store"
    sets = [*SETS, f"runtime.store={store}"]

    def planned(command: str, *more: str) -> str:
        return gristmill(command, "smoke", *(f"--set={one}" for one in sets), *more).stdout

    ladder = ladder_of(AskedLadder("smoke", sets, BUDGETS, SIZES))
    session = session_of(ladder.profile, "pretrain")
    with open_session(
        replace(session, call=lambda stage, config, inputs: stage.materialize(config, inputs)[0])
    ) as opened:
        law = fitted(ladder, opened)
    opened_store = Store(str(store))
    trainings = [manifest for _, manifest in opened_store.manifests("pretrain")]
    assert len(trainings) == len(ladder.rungs) == len(read_law(law).points)
    branched = sum(manifest.facts["resumed_from_step"] > 0 for manifest in trainings)
    assert branched == len(ladder.rungs) - len(SIZES)
    assert {len([*opened_store.manifests(stage)]) for stage in ("download", "filter", "tokenize")} == {1}
    assert opened_store.manifest(refs.resolve(opened_store, "smoke/scaling")) is not None
    # Its largest training is a quarter of what the profile's costs, and the profile's isn't by wsd
    plan = planned("plan", "--to=pretrain")
    assert "By the ladder smoke/scaling pretraining would end at" in plan
    assert "of the held-out text, if it went by wsd." in plan
    other = planned("plan", "--to=pretrain", "--set=pretrain.learning_rate=1e-3")
    assert "says nothing of this pretraining: it had other learning_rate" in other
    assert "Nothing to make" in planned("scaling", "--plan", "--budgets=5e9,1e10,2e10", "--sizes=16,32,48")


@pytest.mark.soak
def test_the_command_prints_the_law(tmp_path: Path) -> None:
    words = ("--budgets=5e9,1e10,2e10,4e10", "--sizes=16", "--jobs=2")
    said = finish(start(tmp_path / "store", *words, sets=SETS, command="scaling"))
    assert "all points have one size, so the law is reduced to E + B / D^β" in said
    assert "Result: bits per byte = " in said
