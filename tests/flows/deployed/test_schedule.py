"""An active schedule starts runs by itself: a real server and worker, as `gristmill ui` starts them.

Prefect's scheduler is a service inside the server. It fails only in the server's log, while everything else seems
fine. So only a run that started by itself is proof.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.deployments import deploy
from flows.server import answers, credentials, patient_client
from tests.flows.running_ui import Ui, running_ui, until

SOURCES = "download.sources=[{kind: embedded, corpora: [encyclopedia], limit: 40}]"


@pytest.fixture
def ui(tmp_path: Path) -> Iterator[Ui]:
    """A server with the deployments and a worker."""
    with running_ui(tmp_path) as running:
        yield running


@pytest.mark.soak
def test_a_schedule_that_is_switched_on_makes_runs(ui: Ui, tmp_path: Path) -> None:
    with patient_client(ui.environment) as client:
        for origin, allowed in ((ui.api.removesuffix("/api"), True), ("https://example.org", False)):
            asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            answer = client.options("/deployments/filter", headers=asked)
            assert ("access-control-allow-origin" in answer.headers) is allowed, "no other site's page may use the API"
        deployment = client.get("/deployments/name/pipeline/nightly").raise_for_status().json()
        (schedule,) = deployment["schedules"]
        parameters = {"profile": "smoke", "overrides": [SOURCES, "download.benchmarks=[arc_easy]"], "to": "download"}
        client.patch(f"/deployments/{deployment['id']}", json={"parameters": parameters}).raise_for_status()
        client.patch(
            f"/deployments/{deployment['id']}/schedules/{schedule['id']}",
            json={"active": True, "schedule": {"interval": 5}},
        ).raise_for_status()
        done: list[dict[str, object]] = []

        def ended() -> bool:
            runs = ui.asked("/flow_runs/filter", deployments={"id": {"any_": [deployment["id"]]}})
            done[:] = [run for run in runs if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED")]
            return bool(done)

        until("the schedule made no run", ended)
    assert done[0]["state_type"] == "COMPLETED"
    assert done[0]["auto_scheduled"] is True
    run = str(done[0]["id"])
    told = re.compile("download: (made in|from the store)")
    until("its page does not tell what it did", lambda: any(told.match(line) for line in ui.logs(run)))
    until("no word of the scheduler", lambda: "the scheduler works" in ui.log.read_text())
    assert list((tmp_path / "store" / "artifacts" / "download").iterdir())
    # Registered again, as at the next start of `gristmill ui`, the deployment keeps what was changed on the server
    deploy(ui.environment)
    again = ui.send("GET", "/deployments/name/pipeline/nightly").raise_for_status().json()
    assert again["parameters"] == parameters
    ((active, times),) = [(schedule["active"], schedule["schedule"]) for schedule in again["schedules"]]
    assert active is True
    assert times["interval"] == 5


@pytest.mark.soak
def test_what_dies_is_started_again_and_that_is_said(ui: Ui) -> None:
    (worker,) = ui.children(b"worker\0start")
    os.killpg(worker, signal.SIGKILL)
    until("nothing said", lambda: "The worker of gristmill ended and is restarted." in ui.log.read_text())
    until("no new worker", lambda: ui.children(b"worker\0start") not in ([], [worker]))
    for ends in range(3):
        (server,) = ui.children(b"flows.guard")
        os.killpg(server, signal.SIGKILL)
        if ends < 2:
            until("it still answers", lambda: not answers(ui.api.removesuffix("/api"), credentials(ui.environment)))
            until("it does not come again", lambda: answers(ui.api.removesuffix("/api"), credentials(ui.environment)))
    assert ui.process.wait(60) == 1
    said = ui.log.read_text()
    assert "Error: The Prefect server ended 3 times" in said, said
    assert "Traceback" not in said


@pytest.mark.soak
def test_a_closed_terminal_ends_the_ui(ui: Ui) -> None:
    ui.process.send_signal(signal.SIGHUP)
    assert ui.process.wait(60) == 129
