"""Deployments at work, on one real server and worker: the form, unchanged data, a person's approval."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.deployed.automations import GONE, automate
from flows.deployed.reevaluate import only_stage
from flows.deployed.suspended import WAITS
from flows.server import credentials
from profiles.load import load
from storage.errors import ConfigError
from storage.runs import history
from storage.runs.record import RunRecord
from storage.store import Store
from tests.flows.running_ui import END, Ui, pressed, processes_of, resume, running_ui, started, state, until

SOURCE = "download.sources=[{kind: files, name: mine, paths: [mine.jsonl]}]"
SMALL = [SOURCE, "download.benchmarks=[arc_easy]"]
BESIDE = "runtime.store=elsewhere"


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    folder = tmp_path_factory.mktemp("ui")
    add_text(folder / "mine.jsonl", 20)
    with running_ui(folder) as running:
        yield running


def add_text(path: Path, rows: int) -> None:
    with path.open("a") as file:
        for number in range(rows):
            file.write(json.dumps({"text": f"The fox number {number} of {rows} sleeps in the forest."}) + "\n")


@pytest.mark.parametrize(
    ("deployment", "wrong", "wanted"),
    [
        ("by-hand", {"profile": "tinyy"}, "or the path of a .yaml file' was expected"),
        ("by-hand", {"to": "pretrian"}, "'pretrian' is not one of ['download'"),
        ("by-hand", {"refresh": ["fitler"]}, "'fitler' is not one of"),
        ("by-hand", {"overrides": ["pretrain"]}, "'section.key=value' was expected"),
        (
            "by-hand",
            {"overrides": ["filter=null", "pretrain.stepss=hunter2"]},
            "'a key that docs/profiles.md lists (a list is given whole)' was expected",
        ),
        ("by-hand", {"nonsense": 1}, "'nonsense' is not one of ['profile', 'overrides', 'to', 'refresh']"),
        ("scaling", {"budgets": []}, "[] should be non-empty"),
        ("scaling", {"budgets": [1e12, 0]}, "0 is less than or equal to the minimum of 0"),
        ("mix", {"proxy": ["pretrain.model.dept=2"]}, "'a key that docs/profiles.md lists"),
        ("mix", {"sources": [""]}, "'a name' was expected"),
        ("mix", {"runs": 0}, "0 is less than the minimum of 1"),
    ],
)
def test_what_no_run_could_honour_is_refused_in_words_before_there_is_one(
    ui: Ui, deployment: str, wrong: dict[str, Any], wanted: str
) -> None:
    answer = pressed(ui, deployment, **wrong)
    assert answer.status_code == httpx.codes.CONFLICT
    assert wanted in answer.json()["detail"]
    assert "hunter2" not in answer.text
    assert "(?!" not in answer.text


def test_the_form_offers_profiles_and_stages_and_describes_each_field(ui: Ui) -> None:
    for deployment in ui.asked("/deployments/filter"):
        fields = deployment["parameter_openapi_schema"]["properties"]
        assert all(field.get("description") for field in fields.values()), deployment["name"]
    (form,) = ui.asked("/deployments/filter", deployments={"name": {"any_": ["by-hand"]}})
    fields = form["parameter_openapi_schema"]["properties"]
    assert "tiny" in fields["profile"]["anyOf"][0]["enum"]
    assert {"pretrain", "export", None} <= set(fields["to"]["enum"])
    assert "form" in fields["refresh"]["items"]["enum"]


@pytest.mark.soak
def test_a_wrong_value_fails_a_run_in_two_sentences_without_a_traceback(ui: Ui) -> None:
    run = started(ui, "by-hand", overrides=["pretrain.steps=-3"])
    assert state(ui, run, *END)["message"] == (
        "Profile smoke: pretrain.steps = -3 must be at least 1.\n"
        "What to do: `gristmill profile schema` lists every key."
    )
    ui.tells(run, "Finished")
    assert not any("Traceback" in line for line in ui.logs(run))
    assert set(ui.send("GET", f"/flow_runs/{run}").json()["tags"]) == {"smoke", "by-hand"}
    of_ref = started(ui, "export-ref", ref="smoke/nothing")
    assert state(ui, of_ref, *END)["name"] == "Failed"
    assert set(ui.send("GET", f"/flow_runs/{of_ref}").json()["tags"]) == {"smoke", "export-ref"}


@pytest.mark.soak
def test_a_parameter_that_no_flow_knows_is_told_in_a_sentence_where_nothing_has_refused_it(ui: Ui) -> None:
    """As for a schedule with its own parameters."""
    (found,) = ui.asked("/deployments/filter", deployments={"name": {"any_": ["by-hand"]}})
    body = {"parameters": {"profile": "smoke", "nonsense": 1}, "enforce_parameter_schema": False}
    made = ui.send("POST", f"/deployments/{found['id']}/create_flow_run", body)
    run = str(made.raise_for_status().json()["id"])
    state(ui, run, *END)
    told = "There is no parameter nonsense. The parameters are profile, overrides, to, refresh."
    ui.tells(run, told)
    assert not any("Traceback" in line for line in ui.logs(run))


@pytest.mark.soak
def test_data_that_is_as_it_was_makes_nothing_and_a_file_more_is_all_that_is_measured(ui: Ui) -> None:
    watched = ui.log.parent / "watched"
    watched.mkdir()
    source = "download.sources=[{kind: files, name: watched, paths: ['watched/*.jsonl']}]"
    asks = [source, "download.benchmarks=[]", "download.shard_documents=10", "runtime.store=grown"]
    add_text(watched / "2026-11-24.jsonl", 20)
    runs = [started(ui, "on-new-data", overrides=asks, to="dedup")]
    assert state(ui, runs[0], *END)["name"] == "Completed"
    runs.append(started(ui, "on-new-data", overrides=asks, to="dedup"))
    assert state(ui, runs[1], *END)["name"] == "Unchanged"
    add_text(watched / "2026-11-25.jsonl", 3)
    runs.append(started(ui, "on-new-data", overrides=asks, to="dedup"))
    assert state(ui, runs[2], *END)["name"] == "Completed"
    store = Store(str(ui.log.parent / "grown"))
    assert [len(of_run(store, run)) for run in runs] == [1, 0, 1]
    newest = max((made for _, made in store.manifests("sketches")), key=lambda made: made.created)
    assert (newest.facts["shards_reused"], newest.counts["sketched"]) == (2, 23)
    ui.tells(runs[2], "2 of 3 shards taken from sketches/")


def events(ui: Ui, run: str) -> list[str]:
    """The names of a flow run's events, in order."""
    wanted = {"resource": {"id": [f"prefect.flow-run.{run}"]}, "order": "ASC"}
    return [event["event"] for event in ui.send("POST", "/events/filter", {"filter": wanted}).json()["events"]]


def of_run(store: Store, run: str) -> list[RunRecord]:
    """The records of a flow run."""
    return [each for each in history.records(store) if isinstance(each, RunRecord) and each.flow_run == run]


@pytest.mark.soak
def test_a_dear_stage_waits_for_a_person_without_a_process(ui: Ui) -> None:
    asks = [*SMALL, BESIDE, "runtime.approve=[dedup]"]
    run = started(ui, "by-hand", overrides=asks, to="dedup")
    waiting = state(ui, run, "PAUSED", *END)
    assert waiting["name"] == "Suspended"
    assert waiting["message"].startswith("dedup must be made")
    until("it waits in a process", lambda: not processes_of(run))
    store = Store(str(ui.log.parent / "elsewhere"))
    assert not list(store.locations("dedup"))
    assert not any("Traceback" in line or "Finished in state Running" in line for line in ui.logs(run))
    until("nothing says that it waits", lambda: WAITS in events(ui, run))
    assert events(ui, run)[-1] == WAITS, "a heartbeat after it would begin a silence"
    (record,) = of_run(store, run)
    assert (record.state, record.error, record.made) == ("waiting", waiting["message"], ["download"])
    resume(ui, run)
    assert state(ui, run, *END)["name"] == "Completed"
    until("no record of its own", lambda: [each.state for each in of_run(store, run)] == ["completed"])
    (whole,) = of_run(store, run)
    assert whole.made == ["download", "sketches", "dedup"], "what it made before it waited, it has made"
    assert whole.stages["download"] == record.stages["download"]
    assert whole.earlier_seconds == record.seconds
    again = started(ui, "by-hand", overrides=asks, to="dedup")
    assert state(ui, again, "PAUSED", *END)["name"] == "Completed", "what is in the store needs no approval"


@pytest.mark.soak
def test_a_run_that_nobody_has_approved_asks_again_when_it_is_run_again(ui: Ui) -> None:
    asks = [*SMALL, "runtime.store=third", "runtime.approve=[download]", "runtime.approve_hours=0.0005"]
    run = started(ui, "by-hand", overrides=asks, to="download")
    assert state(ui, run, *END)["message"] == "The flow was paused and never resumed."
    again = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": True}
    ui.send("POST", f"/flow_runs/{run}/set_state", again).raise_for_status()
    assert state(ui, run, "RUNNING", "PAUSED")
    assert state(ui, run, *END)["message"] == "The flow was paused and never resumed."
    states = [each["name"] for each in ui.send("GET", f"/flow_run_states/?flow_run_id={run}").json()]
    assert states.count("Suspended") == 2
    assert not list(Store(str(ui.log.parent / "third")).locations("download"))


def test_no_page_of_another_site_deletes_a_deployment_or_has_the_worker_run_a_command(ui: Ui) -> None:
    """What such pages have done to Prefect's server as it comes: see guard/test_command.py."""
    deployments = ui.asked("/deployments/filter")
    (found,) = [each for each in deployments if each["name"] == "by-hand"]
    runs = ui.asked("/flow_runs/filter")
    touch, run = {"job_variables": {"command": "touch here"}}, f"/deployments/{found['id']}/create_flow_run"
    asked = [("/deployments/bulk_delete", None), ("/flow_runs/bulk_delete", None), (run, touch)]
    who = credentials(ui.environment)
    for path, body in asked:
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example:4200"}, {}):
            answer = httpx.post(f"{ui.api}{path}", json=body, headers=headers, auth=who if headers else None)
            assert answer.status_code in (401, 403, 421)
    assert ui.send("POST", run, touch).status_code == 403, "not of somebody who has the password either"
    assert ui.asked("/deployments/filter") == deployments
    assert ui.asked("/flow_runs/filter") == runs
    assert not (ui.log.parent / "here").exists()


def test_an_automation_of_an_earlier_version_is_renewed_and_one_that_is_off_stays_off(ui: Ui) -> None:
    def gone() -> dict[str, Any]:
        (found,) = ui.asked("/automations/filter", automations={"name": {"any_": [GONE]}})
        return dict(found)

    created = gone()
    ui.send("PATCH", f"/automations/{created['id']}", {"enabled": False}).raise_for_status()
    automate(ui.environment, None)
    assert (gone()["id"], gone()["enabled"]) == (created["id"], False)
    older = created["trigger"]["expect"]
    older.remove(WAITS)
    body = {name: created[name] for name in ("name", "description", "trigger", "actions")}
    ui.send("PUT", f"/automations/{created['id']}", body).raise_for_status()
    automate(ui.environment, None)
    assert WAITS in gone()["trigger"]["expect"]
    assert gone()["enabled"]


@pytest.mark.soak
def test_approval_is_of_what_was_shown(ui: Ui) -> None:
    """If sources change while a run waits, it asks again."""
    mine = ui.log.parent / "changing.jsonl"
    mine.write_text(json.dumps({"text": "The fox sleeps in the forest."}) + "\n")
    changing = "download.sources=[{kind: files, name: mine, paths: [changing.jsonl]}]"
    asks = [changing, "download.benchmarks=[]", "runtime.store=changing", "runtime.approve=[download]"]
    run = started(ui, "by-hand", overrides=asks, to="download")
    first = state(ui, run, "PAUSED", *END)
    mine.write_text(json.dumps({"text": "The bear sleeps in the forest."}) + "\n")
    resume(ui, run)
    assert state(ui, run, "RUNNING", "PENDING", "SCHEDULED", *END)["id"] != first["id"]
    assert state(ui, run, "PAUSED", *END)["name"] == "Suspended"
    resume(ui, run)
    assert state(ui, run, *END)["name"] == "Completed"


@pytest.mark.soak
def test_without_anybody_to_ask_a_terminal_says_so_and_yes_goes_on(tmp_path: Path) -> None:
    add_text(tmp_path / "mine.jsonl", 5)
    command = [sys.executable, "-m", "flows.cli", "run", "smoke", "--to=download", "--set=runtime.approve=[download]"]
    command += [f"--set={value}" for value in SMALL]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    environment.pop("PREFECT_API_URL", None)
    for more, code in (([], 1), (["--yes"], 0)):
        done = subprocess.run(
            [*command, *more],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        if code:
            assert "runtime.approve asks before download, but there is no terminal" in done.stderr
            assert "Traceback" not in done.stderr


def test_approval_is_of_a_stage_that_there_is() -> None:
    with pytest.raises(ConfigError, match=r"export \(did you mean pretrain\?\)\. "):
        load("smoke", ["runtime.approve=[pretrian]"])


@pytest.mark.parametrize(("stage", "made"), [("evaluate", "evaluate"), ("export", "export")])
def test_a_model_alone_is_evaluated_or_exported(stage: str, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.deployed.reevaluate.model_of", lambda store, ref: "dpo/0123")
    profile = load("smoke", only_stage(load("smoke"), "smoke/dpo@2", stage))
    assert profile.stage_names == ("download", "base", made)
    assert profile.name == "smoke-smoke-dpo-2", "the profile's own refs stay as they are"


@pytest.mark.soak
def test_a_run_of_a_terminal_that_is_killed_does_not_run_for_ever(ui: Ui) -> None:
    overrides = [*SMALL, "runtime.store=killed", "runtime.approve=[download]"]
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "run", "smoke", "--to=download", *(f"--set={one}" for one in overrides)],
        cwd=ui.log.parent,
        env=ui.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    found: list[dict[str, Any]] = []

    def paused() -> bool:
        found[:] = ui.asked("/flow_runs/filter", flow_runs={"state": {"type": {"any_": ["PAUSED"]}}})
        return bool(found)

    until("it does not ask", paused)
    time.sleep(35)  # a beat
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed = str(found[0]["id"])
    until("it waits for ever", lambda: state(ui, killed, "PAUSED", *END)["type"] == "CRASHED", seconds=240)
