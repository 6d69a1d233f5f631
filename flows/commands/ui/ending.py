"""The end of `gristmill ui`: its runs are ended in order, while there are a server that is told and workers that do it.

A run whose worker and server go first is killed without a checkpoint, its page says *Running*, and after the next start
somebody is told of a crash. So all are cancelled as their pages' Cancel does it, and the end waits for them.
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

# A training has 25 seconds to write a checkpoint, after 30 a worker kills, and a signal takes a while to get there
GRACE_SECONDS = 45.0
LOOK_SECONDS = 0.5
WHY = f"Stopped as `gristmill ui` was ended. {AGAIN}"
AT_WORK = ("PENDING", "RUNNING")
RUN = b"PREFECT__FLOW_RUN_ID="  # in the environment of a deployment's run and of all that it starts


class Ending:
    """Ends the runs of deployments of the server at `address` that work on this machine. One that works elsewhere goes
    on: the server may be back soon."""

    def __init__(self, address: str, environment: Mapping[str, str]) -> None:
        self._api = f"{address}/api"
        self._client = httpx.Client(base_url=self._api, timeout=10, auth=credentials(environment))
        self._asked_to_end: set[str] = set()
        self._told = False

    def in_order(self, console: Console) -> None:
        """Cancel all runs and wait until they have ended, or Ctrl-C comes once more, or their time is over."""
        deadline = time.monotonic() + GRACE_SECONDS
        try:
            while time.monotonic() < deadline and self._go_on(console):
                time.sleep(LOOK_SECONDS)
            self._tell()
        except KeyboardInterrupt:
            console.print("Runs are ended at once.")
            self.at_once()
            self._tell()
        except httpx.ConnectError:
            return  # there is no server that could be told

    def at_once(self) -> None:
        """Kill what is left of runs."""
        for process in _working(self._api):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _go_on(self, console: Console) -> bool:
        """Cancel what works; whether there is something to wait for. A server that is too busy is asked again. Raises
        ConnectError."""
        try:
            working = _working(self._api)
            here = self._asked_to_end.union(working.values())
            open_ones = {"type": {"any_": [*AT_WORK, "CANCELLING"]}}
            runs = self._runs({"id": {"any_": sorted(here)}, "state": open_ones}) if here else []
            if runs and not self._told:
                self._told = True
                verb = f"{len(runs)} runs are at work; they stop" if len(runs) > 1 else "1 run is at work; it stops"
                ends = "them" if len(runs) > 1 else "it"
                console.print(f"{verb} with a checkpoint (Ctrl-C again ends {ends} at once)")
            for run in runs:
                if run["state_type"] in AT_WORK:  # a person may have cancelled one before
                    self._set(run["id"], "CANCELLING", force=False)
                    self._asked_to_end.add(run["id"])
        except httpx.ConnectError:
            raise
        except httpx.HTTPError:
            return True
        return bool(runs or working)

    def _tell(self) -> None:
        """Say on the pages of runs why they ended: their worker has said only that they did."""
        if not self._asked_to_end:
            return
        with suppress(httpx.HTTPError):
            for run in self._runs({"id": {"any_": sorted(self._asked_to_end)}}):
                if run["state_type"] in ("CANCELLING", "CANCELLED"):
                    self._set(run["id"], "CANCELLED", force=True)

    def _runs(self, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
        body = {"flow_runs": {"deployment_id": {"is_null_": False}, **wanted}}
        found: list[dict[str, Any]] = self._client.post("/flow_runs/filter", json=body).raise_for_status().json()
        return found

    def _set(self, run: str, kind: str, *, force: bool) -> None:
        state = {"type": kind, "message": WHY}
        answer = self._client.post(f"/flow_runs/{run}/set_state", json={"state": state, "force": force})
        answer.raise_for_status()


def _working(api: str) -> dict[int, str]:
    """Processes that work for runs of deployments of this server, children of trainings included, with the run's id."""
    found, of_server = dict[int, str](), f"PREFECT_API_URL={api}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            variables = (folder / "environ").read_bytes().split(b"\0")
            runs = [each.removeprefix(RUN).decode() for each in variables if each.startswith(RUN)]
            if runs and of_server in variables:
                found[int(folder.name)] = runs[0]
    return found
