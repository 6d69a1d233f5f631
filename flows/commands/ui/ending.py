"""The end of `gristmill ui`: it ends its runs in order, while the server and the workers still exist.

A run whose worker and server end first is killed without a checkpoint, its page says *Running*, and the next start
reports a crash. So all runs are cancelled as by their pages' Cancel, and the end waits for them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from flows.server import credentials
from flows.stop import AGAIN

# A training has 25 seconds to write a checkpoint, a worker kills it after 30, and the signal takes a while to arrive
GRACE_SECONDS = 45.0
LOOK_SECONDS = 0.5
WHY = f"Stopped because `gristmill ui` ended. {AGAIN}"
AT_WORK = ("PENDING", "RUNNING")
RUN = b"PREFECT__FLOW_RUN_ID="  # in the environment of a deployment's run and all its children


class Ending:
    """Ends the deployments' runs of the server at `address` on this machine. Runs elsewhere go on: the server may be
    back soon."""

    def __init__(self, address: str, environment: Mapping[str, str]) -> None:
        self._api = f"{address}/api"
        self._client = httpx.Client(base_url=self._api, timeout=10, auth=credentials(environment))
        self._cancelled: set[str] = set()
        self._announced = False

    def in_order(self, console: Console) -> None:
        """Cancel all runs and wait until they have ended, Ctrl-C comes again, or GRACE_SECONDS are over."""
        deadline = time.monotonic() + GRACE_SECONDS
        try:
            while time.monotonic() < deadline and self._go_on(console):
                time.sleep(LOOK_SECONDS)
            self._give_reason()
        except KeyboardInterrupt:
            console.print("Ending runs at once.")
            self.at_once()
            self._give_reason()
        except httpx.ConnectError:
            return  # the server is gone

    def at_once(self) -> None:
        """Kill the remaining processes of runs."""
        for process in _working(self._api):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _go_on(self, console: Console) -> bool:
        """Cancel running runs. Returns whether to keep waiting, as for a server that is too busy. Raises
        ConnectError."""
        try:
            working = _working(self._api)
            here = self._cancelled.union(working.values())
            open_ones = {"type": {"any_": [*AT_WORK, "CANCELLING"]}}
            runs = self._runs({"id": {"any_": sorted(here)}, "state": open_ones}) if here else []
            if runs and not self._announced:
                self._announced = True
                count, them = (f"{len(runs)} runs", "them") if len(runs) > 1 else ("1 run", "it")
                console.print(f"Stopping {count} with a checkpoint (Ctrl-C again ends {them} at once)")
            for run in runs:
                if run["state_type"] in AT_WORK:  # a person may have cancelled one before
                    self._set(run["id"], "CANCELLING", force=False)
                    self._cancelled.add(run["id"])
        except httpx.ConnectError:
            raise
        except httpx.HTTPError:
            return True
        return bool(runs or working)

    def _give_reason(self) -> None:
        """Write on the runs' pages why they ended, as their workers only wrote that they did."""
        if not self._cancelled:
            return
        with suppress(httpx.HTTPError):
            for run in self._runs({"id": {"any_": sorted(self._cancelled)}}):
                if run["state_type"] in ("CANCELLING", "CANCELLED"):
                    self._set(run["id"], "CANCELLED", force=True)

    def _runs(self, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
        body = {"flow_runs": {"deployment_id": {"is_null_": False}, **wanted}}
        runs: list[dict[str, Any]] = self._client.post("/flow_runs/filter", json=body).raise_for_status().json()
        return runs

    def _set(self, run: str, kind: str, *, force: bool) -> None:
        state = {"type": kind, "message": WHY}
        answer = self._client.post(f"/flow_runs/{run}/set_state", json={"state": state, "force": force})
        answer.raise_for_status()


def _working(api: str) -> dict[int, str]:
    """Processes of this server's deployment runs, including children of trainings, with the run's id."""
    processes, of_server = dict[int, str](), f"PREFECT_API_URL={api}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            variables = (folder / "environ").read_bytes().split(b"\0")
            runs = [each.removeprefix(RUN).decode() for each in variables if each.startswith(RUN)]
            if runs and of_server in variables:
                processes[int(folder.name)] = runs[0]
    return processes
