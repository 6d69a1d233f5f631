"""Stages on work pools: a real server with two pools and their workers, which end with the tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console

from flows.commands.plan import show_plan
from flows.deployments import deploy
from flows.pools.stage_job import Order, Work
from flows.pools.worker import make_stage
from flows.records.recorder import Asked
from flows.session import session_of
from profiles.load import load, names
from profiles.schema import Profile
from storage.artifact import Artifact
from storage.errors import ConfigError, PoolError
from storage.store import Store
from tasks.stage.decorator import STAGES
from tests.flows.running_ui import END, Ui, artifacts, cancel, processes_of, running_ui, started, state, until
from tests.flows.small import SMALL, plain
from tests.pipeline.runs import digests


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    with running_ui(tmp_path_factory.mktemp("ui"), "cpu", "gpu") as running:
        yield running


def start(ui: Ui, store: Path, to: str, *sets: str) -> subprocess.Popen[str]:
    """`gristmill run` of a small profile, which asks the server of `ui`."""
    overrides = [f"--set={value}" for value in (*SMALL, *sets)]
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "run", "smoke", f"--to={to}", f"--store={store}", *overrides],
        env={**ui.environment, "COLUMNS": "300"},
        cwd=store.parent,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def run(ui: Ui, store: Path, to: str, *sets: str) -> tuple[int, str]:
    """Its exit status, and what it said."""
    process = start(ui, store, to, *sets)
    said, _ = process.communicate(timeout=900)
    return process.returncode, said


def newest_run(ui: Ui) -> dict[str, Any]:
    return ui.asked("/flow_runs/filter", flows={"name": {"any_": ["pipeline"]}}, sort="START_TIME_DESC", limit=1)[0]


def states(ui: Ui) -> dict[str, str]:
    """The states of the newest run's tasks, whose names are profile, stage and key."""
    tasks = ui.asked("/task_runs/filter", flow_runs={"id": {"any_": [newest_run(ui)["id"]]}})
    return {str(task["name"]).split()[1]: str(task["state_name"]) for task in tasks if " " in str(task["name"])}


def sent(ui: Ui) -> list[dict[str, Any]]:
    """The runs of stages on pools, newest first."""
    runs = ui.asked("/flow_runs/filter", flows={"name": {"any_": ["sent-stage"]}}, sort="START_TIME_DESC")
    return [each for each in runs if each["name"] != "can it see the store?"]


@pytest.mark.soak
def test_stages_are_made_on_their_pools_with_the_same_digests_and_cached_ones_stay(ui: Ui, tmp_path: Path) -> None:
    pools = ("runtime.pools.data=cpu", "runtime.pools.stages={dedup: gpu}")
    code, said = run(ui, tmp_path / "store", "dedup", *pools)
    assert code == 0, said
    assert "download           runs in the work pool cpu: http://127.0.0.1:" in said
    assert "dedup              runs in the work pool gpu: http://127.0.0.1:" in said
    until("the server has not heard of all", lambda: states(ui) == {"download": "Completed", "dedup": "Completed"})
    on = {str(each["name"]): str(each["work_pool_name"]) for each in sent(ui)}
    assert on == {"smoke: download": "cpu", "smoke: dedup": "gpu"}
    ui.tells(str(sent(ui)[0]["id"]), "dedup: made in ")
    ui.tells(str(newest_run(ui)["id"]), "dedup: runs in the work pool gpu: http://127.0.0.1:")
    assert digests(tmp_path / "store") == plain(tmp_path / "plain", "dedup")
    assert not list((tmp_path / "store" / "probes").iterdir())

    code, said = run(ui, tmp_path / "store", "dedup", *pools)
    assert code == 0, said
    assert "work pool" not in said
    assert len(sent(ui)) == 2
    until("the server has not heard of all", lambda: states(ui) == {"download": "Cached", "dedup": "Cached"})


@pytest.mark.soak
def test_a_failure_is_passed_on_with_its_message_and_its_page(ui: Ui, tmp_path: Path) -> None:
    missing = "download.sources=[{kind: files, name: mine, paths: [nowhere.jsonl]}]"
    (tmp_path / "nowhere.jsonl").write_text("")
    code, said = run(ui, tmp_path / "store", "download", missing, "runtime.pools.data=cpu")
    assert code == 1, said
    assert "Error: `smoke: download` in the work pool cpu failed: " in said
    assert "no file matches" in said
    assert f"{ui.api.removesuffix('/api')}/runs/flow-run/{sent(ui)[0]['id']}" in said
    assert "What to do:" in said
    assert "Traceback" not in said


@pytest.mark.soak
def test_a_pool_without_worker_ends_the_run_in_time(ui: Ui, tmp_path: Path) -> None:
    deploy(ui.environment, ["idle"])
    began = time.monotonic()
    code, said = run(ui, tmp_path / "store", "download", "runtime.pools={data: idle, wait_minutes: 0.05}")
    assert code == 1, said
    assert "Error: The work pool idle had no worker for" in said
    assert "prefect worker start --pool idle" in said
    assert time.monotonic() - began < 120
    runs = ui.asked("/flow_runs/filter", work_pools={"name": {"any_": ["idle"]}})
    assert {each["state_type"] for each in runs} == {"CANCELLED"}, "no worker that comes later may find it"


@pytest.mark.soak
def test_a_pool_that_is_not_there_is_said_before_anything_is_made(ui: Ui, tmp_path: Path) -> None:
    code, said = run(ui, tmp_path / "store", "dedup", "runtime.pools.stages={dedup: cpus}")
    assert code == 1, said
    assert "Error: runtime.pools names the work pool cpus, but the server at" in said
    assert "has cpu, gpu, gristmill" in said
    assert digests(tmp_path / "store") == {}


def test_without_a_server_pools_are_refused(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    command = [sys.executable, "-m", "flows.cli", "run", "smoke", "--to=download", f"--store={tmp_path / 'store'}"]
    command += [f"--set={value}" for value in (*SMALL, "runtime.pools.data=cpu")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "Error: runtime.pools sends stages to cpu, but PREFECT_API_URL is not set." in done.stderr


def test_the_plan_names_the_pool_of_each_stage_that_must_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [*SMALL, f"runtime.store={tmp_path / 'store'}"]
    show_plan(Console(width=200), Asked("smoke", sets))
    assert "pool" not in capsys.readouterr().out
    plain(tmp_path / "store", "download")
    pooled = [*sets, "runtime.pools={data: cpu, training: gpu}"]
    show_plan(Console(width=200), Asked("smoke", pooled))
    table, _, _ = capsys.readouterr().out.partition("\n\n")
    rows = {line.split()[0]: line.split() for line in table.splitlines()}
    assert rows["stage"][:2] == ["stage", "pool"]
    assert rows["download"][1] == "HIT"
    assert rows["download"][2] != "cpu", "the store makes nothing"
    assert rows["dedup"][1:3] == ["MISS", "cpu"]
    assert rows["pretrain"][1:3] == ["MISS", "gpu"]
    assert rows["export"][1] == "MISS"
    show_plan(Console(width=200), Asked("smoke", pooled), json_wanted=True)
    told = {stage["stage"]: stage["pool"] for stage in json.loads(capsys.readouterr().out)["stages"]}
    assert [told[name] for name in ("download", "dedup", "pretrain", "export")] == [None, "cpu", "gpu", None]


@pytest.mark.soak
def test_the_data_half_on_one_pool_and_training_on_another(ui: Ui, tmp_path: Path) -> None:
    pools = ("runtime.pools={data: cpu, training: gpu}",)
    code, said = run(ui, tmp_path / "store", "pretrain", *pools)
    assert code == 0, said
    on = {str(each["name"]): str(each["work_pool_name"]) for each in sent(ui)}
    data = ("download", "filter", "tokenizer", "tokenize")
    assert on.items() >= {**{f"smoke: {name}": "cpu" for name in data}, "smoke: pretrain": "gpu"}.items()
    assert digests(tmp_path / "store") == plain(tmp_path / "plain", "pretrain")

    stopped = start(ui, tmp_path / "store", "pretrain", *pools, "pretrain.steps=500")
    until("no training", lambda: sent(ui)[0]["state_name"] == "Running")
    time.sleep(5)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(60) == 143
    until("the run on the pool goes on", lambda: sent(ui)[0]["state_name"] == "Cancelled")


@pytest.mark.soak
def test_a_run_of_a_terminal_that_is_cancelled_on_its_page_ends_with_its_stage_on_a_pool(
    ui: Ui, tmp_path: Path
) -> None:
    process = start(ui, tmp_path / "store", "pretrain", "runtime.pools.stages={pretrain: gpu}", "pretrain.steps=4000")
    until(
        "no training on the pool",
        lambda: any(each["name"] == "smoke: pretrain" and each["state_name"] == "Running" for each in sent(ui)),
        seconds=300,
    )
    cancel(ui, str(newest_run(ui)["id"]))
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 143, said
    until("the run on the pool goes on", lambda: sent(ui)[0]["state_name"] == "Cancelled")
    told = ui.logs(str(sent(ui)[0]["id"]))
    assert not [line for line in told if "Traceback" in line], told


@pytest.mark.soak
def test_a_run_of_a_terminal_that_is_cancelled_on_its_page_ends(ui: Ui, tmp_path: Path) -> None:
    process = start(ui, tmp_path / "store", "pretrain", "pretrain.steps=4000")
    until("no training", lambda: states(ui).get("pretrain") == "Running", seconds=300)
    run = str(newest_run(ui)["id"])
    cancel(ui, run)
    said, _ = process.communicate(timeout=90)
    assert process.returncode == 143, said
    until("it goes on", lambda: newest_run(ui)["state_name"] in ("Cancelled", "Crashed"))


@pytest.mark.soak
def test_a_cancelled_training_leaves_no_process_and_its_rerun_resumes(ui: Ui, tmp_path: Path) -> None:
    store = tmp_path / "store"
    overrides = [*SMALL, f"runtime.store={store}", "pretrain.steps=400", "pretrain.validation_every=400"]
    run = started(ui, "by-hand", overrides=overrides, to="pretrain")
    until(
        "it does not train",
        lambda: any("pretrain-live" in str(each["key"]) for each in artifacts(ui, run)),
        seconds=300,
    )
    assert processes_of(run)
    cancel(ui, run)
    begun = time.monotonic()
    until("processes are left", lambda: not processes_of(run), seconds=40)
    print(f"gone {time.monotonic() - begun:.1f} s after Cancel")
    assert state(ui, run, *END)["type"] == "CANCELLED"
    assert not [line for line in ui.logs(run) if "Traceback" in line]
    again = started(ui, "by-hand", overrides=overrides, to="pretrain")
    assert state(ui, again, *END, seconds=300)["type"] == "COMPLETED"
    opened = Store(str(store))
    (location,) = opened.locations("pretrain")
    manifest = opened.manifest(location)
    assert manifest is not None
    assert 0 < manifest.facts["resumed_from_step"] < 400


@pytest.mark.soak
def test_two_runs_that_are_started_at_once_train_one_after_the_other(ui: Ui, tmp_path: Path) -> None:
    store = tmp_path / "store"
    code, said = run(ui, store, "tokenize")
    assert code == 0, said
    both = [
        started(ui, "by-hand", overrides=[*SMALL, f"runtime.store={store}", f"pretrain.steps={steps}"], to="pretrain")
        for steps in (40, 41)
    ]
    assert [state(ui, each, *END, seconds=400)["type"] for each in both] == ["COMPLETED"] * 2
    waited = [run for run in both if any("which trains on this machine" in line for line in ui.logs(run))]
    assert len(waited) == 1
    opened = Store(str(store))
    trained = []
    for location in opened.locations("pretrain"):
        manifest = opened.manifest(location)
        assert manifest is not None
        end = datetime.fromisoformat(manifest.created).timestamp()
        trained.append((end - float(manifest.facts["seconds"]), end))
    (_, first), (second, _) = sorted(trained)
    assert first <= second + 1


@pytest.mark.parametrize("name", names())
def test_a_call_arrives_as_it_was_sent(name: str, tmp_path: Path) -> None:
    """Every stage of every profile, through JSON: the same config, and the runtime but for what the profile leaves."""
    profile = load(name, [f"runtime.store={tmp_path}"])
    session = session_of(profile)
    for stage in profile.stage_names:
        config = getattr(profile, stage)
        work = Work.of_call(STAGES[stage], "key", config, [None], ())
        order = Order.model_validate_json(json.dumps(Order.of(session, work=work).model_dump(mode="json")))
        assert order.work is not None
        assert order.work.call(STAGES[stage], session.store) == (config, [None])
        assert "workers" not in order.runtime.get("data", {}) or "workers" in profile.runtime.data.model_fields_set


def test_inputs_arrive_by_their_place_and_what_is_another_is_refused(tmp_path: Path) -> None:
    plain(tmp_path / "store", "download")
    store = Store(str(tmp_path / "store"))
    (location,) = store.locations("download")
    raw = store.get(location)
    given: list[Artifact | dict[str, Artifact] | None] = [raw.part("documents"), {"one": raw}, None]
    profile: Profile = load("smoke")
    assert profile.dedup is not None
    work = Work.of_call(STAGES["dedup"], "key", profile.dedup, given, ())
    assert Work.model_validate_json(work.model_dump_json()).call(STAGES["dedup"], store)[1] == given


def test_a_machine_that_could_make_something_else_refuses(tmp_path: Path) -> None:
    plain(tmp_path / "store", "download")
    profile = load("smoke", [*SMALL, f"runtime.store={tmp_path / 'store'}"])
    session = session_of(profile)
    (location,) = session.store.locations("download")
    documents = session.store.get(location).part("documents")
    assert profile.dedup is not None
    work = Work.of_call(STAGES["dedup"], "0" * 64, profile.dedup, [documents], ())
    order = Order.of(session, work=work)
    with pytest.raises(ConfigError, match="has different code of Gristmill"):
        make_stage(order.model_copy(update={"code": "other"}), work)
    with pytest.raises(ConfigError, match=r"the run has numpy 1\.0"):
        make_stage(order.model_copy(update={"libraries": ["numpy 1.0"]}), work)
    with pytest.raises(PoolError, match="dedup has key"):
        make_stage(order, work)
    assert list(session.store.locations("dedup")) == []


def test_a_stage_that_there_is_not_can_have_no_pool() -> None:
    with pytest.raises((ConfigError, ValidationError), match="did you mean pretrain"):
        load("smoke", ["runtime.pools.stages={pretrian: gpu}"])
    profile = load("smoke", ["runtime.pools={data: cpu, training: gpu, stages: {filter: null, export: gpu}}"])
    pools = {name: profile.pool_of(name) for name in profile.stage_names}
    assert pools == {
        **dict.fromkeys(("download", "dedup", "tokenizer", "tokenize"), "cpu"),
        **dict.fromkeys(("pretrain", "sft", "dpo", "export"), "gpu"),
        "filter": None,
        "evaluate": None,
    }
