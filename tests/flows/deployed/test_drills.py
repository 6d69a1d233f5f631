"""Drills, on a real server and worker: something dies, waits or is away, and the run still finishes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.deployed.automations import SILENT_SECONDS, automate
from flows.server import answers, credentials
from storage import refs
from storage.store import Store
from tasks.children.launchers import free_port
from tests.flows.running_ui import END, Ui, artifacts, cancel, processes_of, resume, running_ui, started, state, until
from tests.flows.small import SMALL, plain
from tests.pipeline.runs import digests
from tests.s3_proxy import Proxy
from tests.s3_server import client_of, s3_server

pytestmark = pytest.mark.soak
LONG = ("dedup=null", "filter=null", "pretrain.steps=300", "pretrain.validation_every=300")
OFTEN = "runtime.training.checkpoint_every=20"


@pytest.fixture(scope="module")
def bucket() -> Iterator[Proxy]:
    """A bucket that can be away."""
    with s3_server() as address, pytest.MonkeyPatch.context() as patched:
        proxy = Proxy(address)
        for name, value in client_of(proxy.url).items():
            patched.setenv(name, value)
        import s3fs

        s3fs.S3FileSystem().mkdir("drills")
        yield proxy
        proxy.shutdown()


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory, bucket: Proxy) -> Iterator[Ui]:
    with running_ui(tmp_path_factory.mktemp("ui")) as running:
        yield running


def test_a_release_goes_out_once_a_person_has_read_what_it_holds_and_has_approved(ui: Ui, tmp_path: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    plain(store, "export", "export.formats=[safetensors]")
    nowhere = started(ui, "promote", ref="smoke/export", store=str(store), to=str(store / "refs"))
    assert "is in a store" in state(ui, nowhere, "PAUSED", *END)["message"], "nobody is asked about such a place"
    run = started(ui, "promote", ref="smoke/export", store=str(store), to=str(out))
    assert "goes out to" in state(ui, run, "PAUSED", *END)["message"]
    assert not out.exists()
    (page,) = [found["data"] for found in artifacts(ui, run) if found["key"] == "release"]
    assert "Its evaluation has no gates" in page
    resume(ui, run)
    assert state(ui, run, *END)["type"] == "COMPLETED"
    assert [*out.rglob("*.safetensors")]
    assert (out / "report.html").is_file()
    assert len(refs.history(Store(str(store)), "released/smoke")) == 1


@contextmanager
def serving(store: Path, state: Path) -> Iterator[str]:
    """`gristmill serve` on the release of a store: its address."""
    url, log = f"http://127.0.0.1:{free_port()}", state.with_suffix(".log")
    command = [sys.executable, "-m", "flows.cli", "serve", "smoke/export", "--store", str(store)]
    options = ["--state", str(state), "--port", url.rpartition(":")[2]]
    with log.open("wb") as out, subprocess.Popen([*command, *options], stdout=out, stderr=out) as process:

        def ready() -> bool:
            assert process.poll() is None, log.read_text()
            with suppress(httpx.TransportError):
                return httpx.get(f"{url}/ready").status_code == httpx.codes.OK
            return False

        until("the server does not answer", ready)
        yield url
        process.send_signal(signal.SIGTERM)


def test_a_release_is_swapped_into_the_running_server_once_a_person_has_approved(ui: Ui, tmp_path: Path) -> None:
    store, state_folder = tmp_path / "store", tmp_path / "state"
    plain(store, "export", "export.formats=[safetensors, gguf-f16]")
    with serving(store, state_folder) as url:
        (before,) = httpx.get(f"{url}/v1/models").json()["data"]
        plain(store, "export", "export.formats=[safetensors, gguf-f16]", "export.name=Another")
        (released,) = refs.history(Store(str(store)), "smoke/export")[1:]
        run = started(ui, "promote", ref="smoke/export", store=str(store), to=f"serve:{state_folder}")
        assert "goes out to the server of" in state(ui, run, "PAUSED", *END)["message"]
        assert httpx.get(f"{url}/v1/models").json()["data"] == [before]
        resume(ui, run)
        assert state(ui, run, *END)["type"] == "COMPLETED"
        ui.tells(run, f"Checking the release {released.location}")
        (after,) = httpx.get(f"{url}/v1/models").json()["data"]
        assert (after["id"], after["digest"]) == (before["id"], released.digest)
        assert released.digest != before["digest"]
        assert [step.digest for step in refs.history(Store(str(store)), "released/smoke")] == [released.digest]
        other = started(ui, "promote", ref="smoke/export@1", store=str(store), to=f"serve:{state_folder}#other")
        state(ui, other, "PAUSED", *END)
        resume(ui, other)
        failed = state(ui, other, *END)
        assert failed["type"] == "FAILED"
        assert "other is not" in failed["message"]
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["digest"] == released.digest
    assert len(refs.history(Store(str(store)), "released/smoke")) == 1


def test_one_stage_is_made_anew_by_what_the_form_sends(ui: Ui, tmp_path: Path) -> None:
    overrides = [*SMALL, f"runtime.store={tmp_path / 'store'}"]
    assert state(ui, started(ui, "by-hand", overrides=overrides, to="dedup"), *END)["type"] == "COMPLETED"
    (found,) = ui.asked("/deployments/filter", deployments={"name": {"any_": ["one-stage"]}})
    fields = found["parameter_openapi_schema"]["properties"]
    form = {"name": "dedup", "profile": "smoke", "overrides": overrides, "refresh": True}
    assert fields.keys() == form.keys()
    body = {
        "state": {"type": "SCHEDULED", "message": "Run from the Prefect UI with defaults", "state_details": {}},
        "name": "wise-fox",
        "parameters": form,
        "enforce_parameter_schema": True,
        "work_queue_name": "default",
        "tags": [],
    }
    answer = ui.send("POST", f"/deployments/{found['id']}/create_flow_run", body)
    run = str(answer.raise_for_status().json()["id"])
    assert state(ui, run, *END)["type"] == "COMPLETED"
    ui.tells(run, "dedup: made in")
    assert any("download: from the store" in line for line in ui.logs(run))
    assert digests(tmp_path / "store") == plain(tmp_path / "plain", "dedup")


def nightly(ui: Ui, *overrides: str) -> dict[str, Any]:
    """The deployment, with these parameters."""
    (found,) = ui.asked("/deployments/filter", deployments={"name": {"any_": ["nightly"]}})
    parameters = {"profile": "smoke", "overrides": [*SMALL, *overrides], "to": "download"}
    ui.send("PATCH", f"/deployments/{found['id']}", {"parameters": parameters}).raise_for_status()
    return found


def scheduled(ui: Ui, deployment: dict[str, Any], active: bool) -> None:
    (schedule,) = deployment["schedules"]
    path = f"/deployments/{deployment['id']}/schedules/{schedule['id']}"
    times = {"active": active, "schedule": {"interval": 20}}
    ui.send("PATCH", path, times).raise_for_status()


def test_an_approval_holds_a_run_by_hand_and_no_run_of_the_schedule(ui: Ui, tmp_path: Path) -> None:
    found = nightly(ui, "runtime.approve=[download]", f"runtime.store={tmp_path / 'store'}")
    path = f"/deployments/{found['id']}/create_flow_run"
    by_hand = str(ui.send("POST", path, {}).raise_for_status().json()["id"])
    assert state(ui, by_hand, "PAUSED", *END)["name"] == "Suspended"
    scheduled(ui, found, True)
    of_schedule = {"deployments": {"id": {"any_": [found["id"]]}}, "sort": "EXPECTED_START_TIME_DESC"}

    def made() -> bool:
        runs = ui.asked("/flow_runs/filter", **of_schedule)
        return any(each["auto_scheduled"] and each["state_type"] == "COMPLETED" for each in runs)

    try:
        until("the schedule makes no run", made)
    finally:
        scheduled(ui, found, False)
    assert state(ui, by_hand, "PAUSED", *END)["name"] == "Suspended"
    cancel(ui, by_hand)
    assert state(ui, by_hand, *END)["type"] == "CANCELLED"


def test_a_run_that_waits_for_approval_leaves_the_slot_of_its_pool(ui: Ui, tmp_path: Path) -> None:
    pool = "/work_pools/gristmill"
    ui.send("PATCH", pool, {"concurrency_limit": 1}).raise_for_status()
    try:
        asks = [*SMALL, f"runtime.store={tmp_path / 'waits'}", "runtime.approve=[download]"]
        waits = started(ui, "by-hand", overrides=asks, to="download")
        assert state(ui, waits, "PAUSED", *END)["name"] == "Suspended"
        other = started(ui, "by-hand", overrides=[*SMALL, f"runtime.store={tmp_path / 'store'}"], to="download")
        assert state(ui, other, *END)["type"] == "COMPLETED"
        resume(ui, waits)
        assert state(ui, waits, *END)["type"] == "COMPLETED"
    finally:
        ui.send("PATCH", pool, {"concurrency_limit": None}).raise_for_status()


def test_of_two_runs_at_a_limit_one_waits_and_both_complete(ui: Ui, tmp_path: Path) -> None:
    (found,) = ui.asked("/deployments/filter", deployments={"name": {"any_": ["by-hand"]}})
    queue = {"concurrency_limit": 1, "concurrency_options": {"collision_strategy": "ENQUEUE"}}
    path = f"/deployments/{found['id']}"
    ui.send("PATCH", path, queue).raise_for_status()
    try:
        overrides = [*SMALL, f"runtime.store={tmp_path / 'store'}"]
        both = [started(ui, "by-hand", overrides=overrides, to=to) for to in ("download", "dedup")]
        assert [state(ui, run, *END)["type"] for run in both] == ["COMPLETED"] * 2
    finally:
        ui.send("PATCH", path, {"concurrency_limit": None}).raise_for_status()
    names = [[str(each["name"]) for each in history_of(ui, run)] for run in both]
    assert sum("AwaitingConcurrencySlot" in one for one in names) == 1, names


def history_of(ui: Ui, run: str) -> list[dict[str, Any]]:
    """The states that a run went through."""
    found: list[dict[str, Any]] = ui.send("GET", f"/flow_run_states/?flow_run_id={run}").raise_for_status().json()
    return found


def test_a_night_that_comes_while_the_last_one_works_is_cancelled(ui: Ui, tmp_path: Path) -> None:
    found = nightly(ui, f"runtime.store={tmp_path / 'store'}")
    path = f"/deployments/{found['id']}/create_flow_run"
    both = [str(ui.send("POST", path, {}).raise_for_status().json()["id"]) for _ in range(2)]
    ended = [state(ui, run, *END) for run in both]
    assert sorted(each["type"] for each in ended) == ["CANCELLED", "COMPLETED"]
    (thrown,) = [each for each in ended if each["type"] == "CANCELLED"]
    assert "concurrency limit" in thrown["message"]


def test_a_stage_whose_bucket_was_away_is_tried_again(ui: Ui, bucket: Proxy) -> None:
    bucket.away = "/artifacts/download"
    run = started(ui, "by-hand", overrides=[*SMALL, "runtime.store=s3://drills/store"], to="download")

    def waits() -> bool:
        tasks = ui.asked("/task_runs/filter", flow_runs={"id": {"any_": [run]}})
        return any(each["state_name"] == "AwaitingRetry" for each in tasks)

    try:
        until("it does not wait", waits)
    finally:
        bucket.away = ""
    assert state(ui, run, *END)["type"] == "COMPLETED"
    assert any(Store("s3://drills/store").locations("download"))


class Listener(ThreadingHTTPServer):
    """Records requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Heard)
        self.heard: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Heard(BaseHTTPRequestHandler):
    server: Listener

    def do_POST(self) -> None:
        self.server.heard.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_webhook_hears_once_of_a_run_that_failed(ui: Ui) -> None:
    listener = Listener()
    kind = ui.send("GET", "/block_types/slug/custom-webhook").raise_for_status().json()
    (schema, *_) = ui.asked("/block_schemas/filter", block_schemas={"block_type_id": {"any_": [kind["id"]]}})
    data = {
        "name": "drill",
        "url": f"http://127.0.0.1:{listener.server_port}/",
        "json_data": {"text": "{{subject}} | {{body}}"},
    }
    block = {"name": "drill", "data": data, "block_type_id": kind["id"], "block_schema_id": schema["id"]}
    ui.send("POST", "/block_documents/", block).raise_for_status()
    automate(ui.environment, "custom-webhook/drill")
    time.sleep(10)  # until the server's triggers know of it
    run = started(ui, "by-hand", overrides=["pretrain.steps=-3"])
    assert state(ui, run, *END)["type"] == "FAILED"
    until("nobody is told", lambda: bool(listener.heard))
    time.sleep(10)  # in which another one would come
    (heard,) = listener.heard
    name = ui.send("GET", f"/flow_runs/{run}").json()["name"]
    assert name in heard
    assert "pretrain.steps = -3" in heard
    assert run in heard
    listener.shutdown()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digests of the long run."""
    return plain(tmp_path_factory.mktemp("plain") / "store", "pretrain", *LONG)


def begun(ui: Ui, store: Path) -> str:
    """The long run, once its training has a checkpoint."""
    run = started(ui, "by-hand", overrides=[*SMALL, *LONG, OFTEN, f"runtime.store={store}"], to="pretrain")
    until("no checkpoint", lambda: any(store.rglob("checkpoints/step-*/complete.json")), seconds=240)
    assert state(ui, run, "RUNNING", *END)["type"] == "RUNNING", "it is over already"
    return run


def test_a_server_that_is_killed_in_the_middle_of_a_run_does_not_end_it(
    ui: Ui, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    run = begun(ui, tmp_path / "store")
    (server,) = ui.children(b"flows.guard")
    os.killpg(server, signal.SIGKILL)
    until("it still answers", lambda: not answers(ui.api.removesuffix("/api"), credentials(ui.environment)))
    assert state(ui, run, *END, seconds=300)["type"] == "COMPLETED"
    assert digests(tmp_path / "store") == undisturbed


def test_what_a_dead_machine_leaves_is_crashed_in_time_and_its_rerun_resumes_to_the_same_bytes(
    ui: Ui, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    """A worker and its run are killed together, so that nobody is left to report it."""
    run = begun(ui, tmp_path / "store")
    (worker,) = ui.children(b"worker\0start")
    killed = time.monotonic()
    os.killpg(worker, signal.SIGKILL)
    for process in processes_of(run):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert state(ui, run, *END, seconds=SILENT_SECONDS + 60)["type"] == "CRASHED"
    print(f"Crashed {time.monotonic() - killed:.0f} s after the kill")
    again = started(ui, "by-hand", overrides=[*SMALL, *LONG, f"runtime.store={tmp_path / 'store'}"], to="pretrain")
    assert state(ui, again, *END, seconds=300)["type"] == "COMPLETED"
    opened = Store(str(tmp_path / "store"))
    (location,) = opened.locations("pretrain")
    manifest = opened.manifest(location)
    assert manifest is not None
    assert manifest.facts["resumed_from_step"] >= 20
    assert digests(tmp_path / "store") == undisturbed


def test_a_worker_that_is_killed_alone_ends_no_run(ui: Ui, undisturbed: dict[str, str], tmp_path: Path) -> None:
    run = begun(ui, tmp_path / "store")
    (worker,) = ui.children(b"worker\0start")
    os.killpg(worker, signal.SIGKILL)
    assert state(ui, run, *END, seconds=300)["type"] == "COMPLETED"
    assert digests(tmp_path / "store") == undisturbed


@pytest.mark.parametrize("ignores", [False, True], ids=["Ctrl-C", "SIGTERM in the background"])
def test_a_ui_that_is_ended_ends_its_runs_in_order(ignores: bool, tmp_path: Path) -> None:
    with running_ui(tmp_path, background=ignores) as ui:
        run = begun(ui, tmp_path / "store")
        assert processes_of(run)
        ui.process.send_signal(signal.SIGTERM if ignores else signal.SIGINT)
        ui.process.wait(90)
        assert not processes_of(run)
    assert "Stopping 1 run with a checkpoint" in ui.log.read_text()
    (record,) = (tmp_path / "store" / "runs").glob("*.json")
    assert json.loads(record.read_text())["state"] == "stopped"
    assert list((tmp_path / "store" / "work").rglob("checkpoints/step-*/complete.json"))
    with running_ui(tmp_path) as again:
        ended = state(again, run, *END)
        assert ended["name"] == "Cancelled"
        assert ended["message"].startswith("Stopped because `gristmill ui` ended.")
