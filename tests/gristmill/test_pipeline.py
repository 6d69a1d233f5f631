"""A plan, a run and its store from Python, in a process with an event loop of its own."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import gristmill as gm
from storage.store import Store

SMALL = {"download.sources": [{"kind": "embedded", "corpora": ["encyclopedia"], "limit": 60}]}


class Made:
    """A run to the filter within an event loop, in its store."""

    def __init__(self, store: Path) -> None:
        self.store, self.to = store, "filter"
        self.before, self.run, self.after = asyncio.run(self._all())

    async def _all(self) -> tuple[gm.Plan, gm.Run, gm.Plan]:
        assert asyncio.get_running_loop()
        first = gm.plan("smoke", SMALL, store=self.store, to=self.to)
        run = gm.run("smoke", SMALL, store=self.store, to=self.to, progress=False)
        return first, run, gm.plan("smoke", SMALL, store=self.store, to=self.to)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("run") / "store")


def test_a_plan_says_what_a_run_then_makes(made: Made) -> None:
    assert [stage.name for stage in made.before] == made.before.missing == list(made.run) == made.run.made
    assert made.before["dedup"].why == "waits for download"
    assert made.before[0] == made.before["download"]
    assert made.after.missing == []
    assert made.after.seconds == 0
    assert all(stage.hit and stage.size and stage.seconds is not None for stage in made.after)
    assert repr(made.after).splitlines()[-1] == "smoke: nothing to make."
    assert "3 of 3 stages to make" in repr(made.before)
    assert made.before._repr_html_().count("<tr>") == 4
    with pytest.raises(gm.GristmillError, match="export is not a stage of the plan"):
        made.before["export"]


def test_a_run_is_a_mapping_to_artifacts(made: Made) -> None:
    clean = made.run["filter"]
    assert clean.path.is_dir()
    assert clean.stage == "filter"
    assert clean.counts["documents"]["kept"] == clean.documents().num_rows
    assert clean.ledger(["reason"]).num_rows > 0
    assert clean.manifest.payload.stage == "filter"
    assert clean.facts["seconds"] > 0
    assert made.run.get("export") is None
    assert "export" not in made.run
    with pytest.raises(gm.GristmillError, match="The run did not reach export"):
        made.run["export"]
    with pytest.raises(gm.GristmillError, match="lacks scores"):
        clean.scores  # noqa: B018
    with pytest.raises(gm.GristmillError, match="lacks tables"):
        made.run["filter"].part("tables")


def test_a_store_is_read_by_ref_and_by_its_history(made: Made) -> None:
    store = gm.store(made.store)
    assert {"smoke/download", "smoke/dedup", "smoke/filter"} <= set(store)
    assert len(store) == len(list(store)) == len(store._ipython_key_completions_())
    assert "smoke/filter" in store
    assert "smoke/nothing" not in store
    assert store["smoke/filter@1"].location == store["smoke/filter"].location == made.run["filter"].location
    assert [one.location for one in store.history("smoke/filter")] == [made.run["filter"].location]
    assert store.history("smoke/nothing") == []
    for wrong, said in (
        ("smoke/fliter", "Did you mean smoke/filter"),
        ("smoke/filter@9", "@9"),
        ("", "The name is empty"),
    ):
        with pytest.raises(gm.GristmillError) as raised:
            store[wrong]
        assert said in str(raised.value)


FORMS: dict[str, Callable[[Any], Any]] = {
    "arrow": lambda table: table.to_pydict(),
    "pandas": lambda frame: frame.to_dict("list"),
    "polars": lambda frame: frame.to_dict(as_series=False),
    "datasets": lambda rows: rows[:],
}


@pytest.mark.parametrize("form", FORMS)
def test_documents_come_in_any_form(made: Made, form: Any) -> None:
    package = "pyarrow" if form == "arrow" else form
    if find_spec(package) is None:
        with pytest.raises(gm.GristmillError, match=f"{form} is not installed"):
            made.run["dedup"].documents(as_=form)
        return
    found = FORMS[form](made.run["dedup"].documents(["text", "id"], as_=form))
    assert list(found) == ["text", "id"]
    assert found == made.run["dedup"].documents(["text", "id"]).to_pydict()


def test_wrong_columns_and_forms_are_named(made: Made) -> None:
    with pytest.raises(gm.GristmillError, match="Unknown column: txt"):
        made.run["dedup"].documents(["txt"])
    with pytest.raises(gm.GristmillError, match="'excel' is not a form"):
        made.run["dedup"].documents(as_="excel")  # type: ignore[arg-type]


def test_an_artifact_is_an_input_of_the_functions_on_folders(made: Made, tmp_path: Path) -> None:
    result = gm.filter(made.run["dedup"], tmp_path / "clean", config={"preset": "clean"}, progress=False)
    assert result.kept == result.documents().num_rows
    with pytest.raises(gm.GristmillError, match="which never changes"):
        gm.filter(made.run["dedup"], made.run["dedup"].path / "new")


def test_a_whole_profile_as_a_mapping_runs_in_another_thread_and_is_recorded(made: Made, tmp_path: Path) -> None:
    profile = {"extends": "smoke", "name": "mine", "download": {"sources": SMALL["download.sources"]}}
    found: list[gm.Run] = []
    threads = [threading.get_ident()]

    def work() -> None:
        threads.append(threading.get_ident())
        found.append(gm.run(profile, store=tmp_path / "store", to="download", progress=False))

    before = sys.excepthook
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert sys.excepthook is before
    assert len(set(threads)) == 2
    assert list(found[0]) == ["download"]
    (record,) = Store(str(tmp_path / "store")).names("runs")
    assert record
    again = gm.run(profile, store=tmp_path / "store", to="download", progress=False)
    assert again.made == []
    assert gm.run(profile, store=tmp_path / "store", to="download", refresh=["download"], progress=False).made == [
        "download"
    ]


@pytest.mark.soak
def test_a_whole_run_has_scores(tmp_path: Path) -> None:
    run = gm.run("smoke", {"pretrain.steps": 5, **SMALL}, store=tmp_path / "store", progress=False)
    assert run["evaluate"].scores["base bits per byte"].value > 0
    assert (run["export"].path / "model.safetensors").is_file()
