"""A run that is stopped, killed, or left by its server: its page and the pages of its tasks say so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from flows.commands.ui.ending import RUN, Ending
from flows.deployed.orphaned_tasks import LeftOpen
from flows.deployed.run_lifecycle import told
from flows.guard.password import CLIENT
from flows.server import answers, credentials
from storage.files import locks
from tasks.children.launchers import free_port
from tests.flows.running_ui import sent, served, speaking_to, until
from tests.pipeline.runs import ROOT, mind_signals

SETTINGS = ["download.sources=[{kind: embedded, corpora: [encyclopedia], limit: 40}]", "download.benchmarks=[arc_easy]"]
WAITS = "runtime.approve=[download]"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server's API, whose password is in the environment."""
    home = tmp_path_factory.mktemp("prefect")
    with served(home) as environment, speaking_to(environment), pytest.MonkeyPatch.context() as patch:
        patch.setenv(CLIENT, environment[CLIENT])
        yield environment["PREFECT_API_URL"]


def asked(api: str, path: str, **body: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sent(of(api), "POST", path, body).raise_for_status().json()
    return found


def of(api: str) -> dict[str, str]:
    return {**os.environ, "PREFECT_API_URL": api}


def begin(api: str, folder: Path, *settings: str) -> subprocess.Popen[str]:
    """A run at a terminal without a person."""
    sets = [f"--set={value}" for value in (*SETTINGS, f"runtime.store={folder / 'store'}", *settings)]
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "run", "smoke", "--to=download", *sets],
        cwd=ROOT,
        env=of(api),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=mind_signals,
    )


@contextmanager
def waiting(api: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A run that waits for approval in its first stage, and its id."""
    process = begin(api, folder, WAITS)
    found: list[str] = []

    def paused() -> bool:
        assert process.poll() is None, process.communicate()[0]
        runs = asked(api, "/flow_runs/filter", flow_runs={"state": {"type": {"any_": ["PAUSED"]}}})
        found[:] = [str(run["id"]) for run in runs]
        return bool(found)

    try:
        until("it does not ask", paused)
        (run,) = found
        yield process, run
    finally:
        process.kill()
        process.communicate()


def states(api: str, run: str) -> list[dict[str, Any]]:
    """The state of a run, and of its only task once that has ended."""
    tasks: list[dict[str, Any]] = []

    def known() -> bool:
        tasks[:] = asked(api, "/task_runs/filter", flow_runs={"id": {"any_": [run]}})
        return bool(tasks) and tasks[0]["state_type"] not in ("PENDING", "RUNNING")

    until("its task is open", known)
    (task,) = tasks
    return [state_of(api, run), task["state"]]


def state_of(api: str, run: str) -> dict[str, Any]:
    found: dict[str, Any] = sent(of(api), "GET", f"/flow_runs/{run}").json()["state"]
    return found


@pytest.mark.soak_but("SIGTERM-143-Stopped by SIGTERM at the terminal.")
@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("SIGTERM", 143, "Stopped by SIGTERM at the terminal."),
        ("SIGINT", 130, "Stopped by Ctrl-C at the terminal."),
        pytest.param("page", 143, "Cancelled on its page.", marks=pytest.mark.soak),
    ],
)
def test_a_run_that_somebody_stops_reads_cancelled_and_so_does_its_task(
    how: str, code: int, message: str, api: str, tmp_path: Path
) -> None:
    with waiting(api, tmp_path) as (process, run):
        if how == "page":
            asked(api, f"/flow_runs/{run}/set_state", state={"type": "CANCELLING"})
        else:
            process.send_signal(signal.Signals[how])
        said, _ = process.communicate(timeout=120)
    assert process.returncode == code, said
    assert "Traceback" not in said
    word = {"SIGTERM": "Terminated", "SIGINT": "Interrupted", "page": "Cancelled on its page"}[how]
    assert f"{word}. The same command resumes where it stopped." in said
    flow, task = states(api, run)
    assert (flow["name"], task["name"]) == ("Cancelled", "Cancelled")
    assert flow["message"].startswith(message)
    (found,) = asked(api, "/flow_runs/filter", flow_runs={"id": {"any_": [run]}})
    assert found["tags"] == ["smoke"]
    logs = asked(api, "/logs/filter", logs={"flow_run_id": {"any_": [run]}, "level": {"ge_": 40}})
    assert not logs, "it is no error"


@pytest.mark.soak_but("Crashed-Crashed")
@pytest.mark.parametrize(("run_is", "task_is"), [("Crashed", "Crashed"), ("Completed", "Cancelled")])
def test_what_a_run_has_left_open_is_ended(run_is: str, task_is: str, api: str, tmp_path: Path) -> None:
    """It was killed, or suspended in the middle of a task that it restarted."""
    left = LeftOpen(api.removesuffix("/api"), os.environ)
    with waiting(api, tmp_path) as (process, run):
        tasks: list[dict[str, Any]] = []

        def is_known() -> bool:
            tasks[:] = asked(api, "/task_runs/filter", flow_runs={"id": {"any_": [run]}})
            return bool(tasks) and tasks[0]["state_type"] == "RUNNING"

        until("the server knows of no task", is_known)
        assert left.end(0) == 0, "the run goes on"
        process.kill()
        process.wait()
        asked(api, f"/flow_runs/{run}/set_state", state={"type": run_is.upper()}, force=True)
        assert left.end(600) == 0, "what its task said last may be on its way"
        assert left.end(0) == 1
        assert left.end(0) == 0
    flow, task = states(api, run)
    assert (flow["name"], task["name"]) == (run_is, task_is)
    assert task["message"] == f"Its run ended as {run_is} while this was open."


def test_a_run_of_a_deployment_whose_server_does_not_answer_says_which(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.flow_engine import run_flow

    @flow
    @told
    def asks() -> str:
        raise httpx.ConnectError("refused")

    monkeypatch.setenv("PREFECT_API_URL", api)
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(asks), name="asks")
        run = client.create_flow_run_from_deployment(deployment)
    run_flow(asks, flow_run=run, return_type="state")
    state = state_of(api, str(run.id))
    assert state["name"] == "Failed"
    assert state["message"].startswith(f"The Prefect server at {api} did not answer the run: refused.\nWhat to do: Run")


def at_work(api: str) -> tuple[str, subprocess.Popen[bytes]]:
    """A run of a deployment that ignores its Cancel, and its process."""
    flow: Any = asked(api, "/flows/", name="ignores")
    deployment: Any = asked(api, "/deployments/", name="ignores", flow_id=flow["id"])
    run: Any = asked(api, f"/deployments/{deployment['id']}/create_flow_run", state={"type": "RUNNING"})
    environment = {**of(api), RUN.decode().rstrip("="): run["id"]}
    return str(run["id"]), subprocess.Popen(["sleep", "600"], env=environment)


def test_the_end_of_ui_cancels_its_runs_and_says_why_and_ctrl_c_again_does_not_wait(
    api: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, process = at_work(api)
    ending = Ending(api.removesuffix("/api"), os.environ)

    def press_again() -> None:
        until("it is not cancelled", lambda: state_of(api, run)["type"] == "CANCELLING")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # these tests may run in the background
    again = threading.Thread(target=press_again)
    again.start()
    try:
        ending.in_order(Console())
    finally:
        again.join()
        signal.signal(signal.SIGINT, before)
    assert process.wait(30) == -signal.SIGKILL
    assert "Stopping 1 run with a checkpoint" in capsys.readouterr().out
    state = state_of(api, run)
    assert state["name"] == "Cancelled"
    assert state["message"].startswith("Stopped because `gristmill ui` ended. Run it again")


@pytest.mark.soak
def test_a_run_that_waits_for_another_ends_by_a_signal_though_its_server_is_away(api: str, tmp_path: Path) -> None:
    port = free_port()
    way = subprocess.Popen([sys.executable, "-m", "tests.flows.away", str(port), api], cwd=ROOT)
    try:
        until("there is no way", lambda: answers(f"http://127.0.0.1:{port}", credentials(os.environ)))
        through = f"http://127.0.0.1:{port}/api"
        first = begin(through, tmp_path)
        said, _ = first.communicate(timeout=180)
        assert first.returncode == 0, said
        (made,) = (tmp_path / "store" / "artifacts" / "download").iterdir()
        (tmp_path / "other" / "locks").mkdir(parents=True)
        (tmp_path / "other" / "gristmill.json").write_bytes((tmp_path / "store" / "gristmill.json").read_bytes())
        with locks.hold(tmp_path / "other" / "locks" / f"download-{made.name}"):
            process = begin(through, tmp_path, f"runtime.store={tmp_path / 'other'}")
            assert process.stdout is not None
            while "waiting for" not in (line := process.stdout.readline()):
                assert line, "it has ended"
            way.kill()
            way.wait()
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=120)  # Prefect alone takes minutes, as it repeats each request
        assert process.returncode == 143, said
        assert "Terminated. The same command resumes" in said
        assert "Traceback" not in said
    finally:
        way.kill()
        way.wait()
