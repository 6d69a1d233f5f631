"""A schedule that is switched on starts runs by itself: a real server and worker, as `gristmill ui` starts them.

Prefect's scheduler is a service inside the server. When it fails, it does so in the server's log alone, pass after
pass, and everything else seems well; so nothing less than a run that came by itself is proof.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from flows.deployments import deploy
from tests.pipeline.runs import mind_signals

ROOT = Path(__file__).parents[2]
SOURCES = "download.sources=[{kind: embedded, corpora: [encyclopedia], limit: 40}]"
START_SECONDS, RUN_SECONDS = 180.0, 180.0


class Ui(NamedTuple):
    """A running `gristmill ui` and the address of its server."""

    process: subprocess.Popen[bytes]
    api: str


@pytest.fixture
def ui(tmp_path: Path) -> Iterator[Ui]:
    """A server with the deployments and a worker, started by `gristmill ui` outside the checkout."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path / "prefect"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "flows.cli", "ui", "--port", str(port)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=mind_signals,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while "Prefect is at" not in (tmp_path / "log").read_text():
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, "no server"
            time.sleep(0.5)
        yield Ui(process, f"http://127.0.0.1:{port}/api")
    finally:
        process.send_signal(signal.SIGTERM)  # as a service manager stops it; Ctrl-C goes the same way
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/api/health", timeout=5)


def test_a_schedule_that_is_switched_on_makes_runs(ui: Ui, tmp_path: Path) -> None:
    with httpx.Client(base_url=ui.api, timeout=30) as client:
        for origin, allowed in ((ui.api.removesuffix("/api"), True), ("https://example.org", False)):
            asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            answer = client.options("/deployments/filter", headers=asked)
            assert ("access-control-allow-origin" in answer.headers) is allowed, "no other site's page may use the API"
        deployment = client.get("/deployments/name/pipeline/nightly").raise_for_status().json()
        # A password would stay in the database for ever, so it is refused before it gets there
        leaking = {"parameters": {"overrides": ["runtime.store=s3://key:a/secret+of=tests@bucket/store"]}}
        refused = [
            client.post(f"/deployments/{deployment['id']}/create_flow_run", json=leaking),
            client.patch(f"/deployments/{deployment['id']}", json=leaking),
        ]
        assert [answer.status_code for answer in refused] == [409, 409]
        (schedule,) = deployment["schedules"]
        parameters = {
            "profile": "smoke",
            "overrides": [SOURCES, "download.benchmarks=[arc_easy]"],
            "to": "download",
        }
        client.patch(f"/deployments/{deployment['id']}", json={"parameters": parameters}).raise_for_status()
        client.patch(
            f"/deployments/{deployment['id']}/schedules/{schedule['id']}",
            json={"active": True, "schedule": {"interval": 5}},
        ).raise_for_status()
        deadline = time.monotonic() + RUN_SECONDS
        done: list[dict[str, object]] = []
        while not done:
            assert time.monotonic() < deadline, "the schedule made no run"
            time.sleep(1)
            wanted = {"deployments": {"id": {"any_": [deployment["id"]]}}}
            runs = client.post("/flow_runs/filter", json=wanted).raise_for_status().json()
            done = [run for run in runs if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED")]
    assert done[0]["state_type"] == "COMPLETED"
    assert done[0]["auto_scheduled"] is True
    assert list((tmp_path / "store" / "artifacts" / "download").iterdir())
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"a/secret+of=tests" not in kept
    # Registered again, as at the next start of `gristmill ui`, the deployment keeps what was changed on the server
    deploy({**os.environ, "PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_API_URL": ui.api})
    again = httpx.get(f"{ui.api}/deployments/name/pipeline/nightly", timeout=30).raise_for_status().json()
    assert again["parameters"] == parameters
    ((active, times),) = [(schedule["active"], schedule["schedule"]) for schedule in again["schedules"]]
    assert active is True
    assert times["interval"] == 5


@pytest.mark.soak
def test_a_server_that_dies_ends_the_ui_with_a_sentence(ui: Ui, tmp_path: Path) -> None:
    for child in Path(f"/proc/{ui.process.pid}/task/{ui.process.pid}/children").read_text().split():
        if b"server\0start" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.killpg(int(child), signal.SIGKILL)
    assert ui.process.wait(30) == 1
    said = (tmp_path / "log").read_text()
    assert "Error: The Prefect server ended." in said
    assert "Traceback" not in said


@pytest.mark.soak
def test_a_closed_terminal_ends_the_ui(ui: Ui) -> None:
    ui.process.send_signal(signal.SIGHUP)
    assert ui.process.wait(60) == 129
