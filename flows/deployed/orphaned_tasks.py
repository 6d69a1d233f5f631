"""Task runs that a run left open: it was killed, its server was away when they ended, or it was suspended in the middle
of them and restarted.

A worker or an automation sees that a run is dead and sets its state. Nobody sets that of its tasks, which Prefect's
server would show as *Running* for ever.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from flows.server import credentials

LOOK_SECONDS = 10.0
LATE_SECONDS = 30.0  # a task's events may reach the server after its run's end
MOST = 200  # at once: more than a run has
# A run's state: the state for its open tasks
ENDS = {"CRASHED": "CRASHED", "FAILED": "CRASHED", "CANCELLED": "CANCELLED", "COMPLETED": "CANCELLED"}
OPEN = ("PENDING", "RUNNING", "PAUSED", "SCHEDULED")


class LeftOpen:
    """The open task runs of the server at `address`."""

    def __init__(self, address: str, environment: Mapping[str, str]) -> None:
        self._client = httpx.Client(base_url=f"{address}/api", timeout=10, auth=credentials(environment))
        self._looked = 0.0

    def look(self) -> None:
        """End them, at most every LOOK_SECONDS. A server that does not answer is asked the next time."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            with suppress(httpx.HTTPError):
                self.end(LATE_SECONDS)

    def end(self, late: float) -> int:
        """End those of runs that ended at least `late` seconds ago. Returns their number. Raises HTTPError."""
        ended = {
            "state": {"type": {"any_": list(ENDS)}},
            "end_time": {"before_": (datetime.now(UTC) - timedelta(seconds=late)).isoformat()},
        }
        still = {"state": {"type": {"any_": OPEN}}}
        tasks = self._list("/task_runs/filter", {"task_runs": still, "flow_runs": ended, "limit": MOST})
        if not tasks:
            return 0
        runs = {"id": {"any_": sorted({str(task["flow_run_id"]) for task in tasks})}}
        states = {run["id"]: run["state_type"] for run in self._list("/flow_runs/filter", {"flow_runs": runs})}
        for task in tasks:
            state = {"type": ENDS.get(states.get(task["flow_run_id"], ""), "CRASHED"), "message": _why(task, states)}
            answer = self._client.post(f"/task_runs/{task['id']}/set_state", json={"state": state, "force": True})
            answer.raise_for_status()
        return len(tasks)

    def _list(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        matches: list[dict[str, Any]] = self._client.post(path, json=body).raise_for_status().json()
        return matches


def _why(task: Mapping[str, Any], states: Mapping[str, str]) -> str:
    return f"Its run ended as {states.get(task['flow_run_id'], 'CRASHED').capitalize()} while this was open."
