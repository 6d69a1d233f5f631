"""`gristmill ui` as a process, on a free port, outside the checkout, until the end of the block."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from flows.guard.password import CLIENT, new_password, variables
from flows.server import SERVE, credentials, start, stop, wait
from tasks.children.launchers import free_port
from tests.pipeline.runs import mind_signals

ROOT = Path(__file__).parents[2]
# For what is to come, where no test is of how soon: a client of Prefect that a busy SQLite has refused asks five times
# more, over a minute and longer, and so do lines of a log
PATIENCE = 180.0
END = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
FILLED = {  # a copy of a database needs no set-up at the start
    "PREFECT_SERVER_DATABASE_MIGRATE_ON_START": "false",
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
}


class Ui(NamedTuple):
    """A running `gristmill ui`: its process, the address of its server, its environment, and where it speaks."""

    process: subprocess.Popen[bytes]
    api: str
    environment: dict[str, str]
    log: Path

    def children(self, command: bytes) -> list[int]:
        """Its children whose command line has this in it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children if command in Path(f"/proc/{child}/cmdline").read_bytes()]

    def asked(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """What the server answers."""
        found: list[dict[str, Any]] = self.send("POST", path, body).raise_for_status().json()
        return found

    def send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """See `sent`."""
        return sent(self.environment, method, path, body)

    def logs(self, flow_run: str) -> list[str]:
        """What a flow run and its tasks have logged."""
        wanted = {"flow_run_id": {"any_": [flow_run]}}
        return [str(line["message"]) for line in self.asked("/logs/filter", logs=wanted, sort="TIMESTAMP_ASC")]

    def tells(self, flow_run: str, told: str) -> None:
        """Wait until a run's page tells this, in a line."""
        deadline, lines = time.monotonic() + PATIENCE, self.logs(flow_run)
        while not any(told in line for line in lines):
            assert time.monotonic() < deadline, "\n".join([f"no line tells `{told}`:", *lines])
            time.sleep(0.5)
            lines = self.logs(flow_run)


def sent(environment: Mapping[str, str], method: str, path: str, body: Any = None) -> httpx.Response:
    """The answer of the server of an environment, once it has room for the question: its SQLite refuses when it is
    busy, and it may be started again."""
    answers: list[httpx.Response] = []

    def taken() -> bool:
        with suppress(httpx.TransportError):
            who, url = credentials(environment), f"{environment['PREFECT_API_URL']}{path}"
            # Certificates, which this server has none of, take 40 ms to load
            answers.append(httpx.request(method, url, json=body, auth=who, timeout=90, verify=False))
            return answers[-1].status_code != httpx.codes.SERVICE_UNAVAILABLE
        return False

    until("the server is too busy", taken)
    return answers[-1]


def until(what: str, holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


def pressed(ui: Ui, deployment: str, **parameters: Any) -> httpx.Response:
    """The answer to whoever presses Run, with these parameters in the form, and `smoke` where it has a profile."""
    (found,) = ui.asked("/deployments/filter", deployments={"name": {"any_": [deployment]}})
    profile = {"profile": "smoke"} if "profile" in found["parameter_openapi_schema"]["properties"] else {}
    body = {"parameters": {**profile, **parameters}}
    return ui.send("POST", f"/deployments/{found['id']}/create_flow_run", body)


def started(ui: Ui, deployment: str, **parameters: Any) -> str:
    """The id of the run that this begins."""
    return str(pressed(ui, deployment, **parameters).raise_for_status().json()["id"])


def state(ui: Ui, run: str, *kinds: str, seconds: float = PATIENCE) -> dict[str, Any]:
    """A run's state, once it is one of these kinds."""
    found: list[dict[str, Any]] = []

    def reached() -> bool:
        found.append(ui.send("GET", f"/flow_runs/{run}").json()["state"])
        return found[-1]["type"] in kinds

    until(f"{run} is never {kinds}", reached, seconds)
    return found[-1]


def resume(ui: Ui, run: str) -> None:
    """As the button of a run's page does."""
    ui.send("POST", f"/flow_runs/{run}/resume", {}).raise_for_status()


def cancel(ui: Ui, run: str) -> None:
    """As the button of a run's page does."""
    ui.send("POST", f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}}).raise_for_status()


def artifacts(ui: Ui, run: str) -> list[dict[str, Any]]:
    """Prefect's artifacts of a run: pages, progress."""
    return ui.asked("/artifacts/filter", flow_runs={"id": {"any_": [run]}})


def processes_of(run: str) -> list[int]:
    """What works for a flow run of a deployment, which all inherit the variable that names it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"PREFECT__FLOW_RUN_ID={run}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def served(home: Path, **further: str) -> Iterator[dict[str, str]]:
    """The environment of clients of a server alone, which has no worker, and Prefect's home there. All but the first of
    a process begin with a copy of an empty database. `further` are variables."""
    port = str(free_port())
    address = f"http://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"{address}/api",
        **variables(new_password()),
    }
    environment |= further
    with tempfile.TemporaryFile() as said, tempfile.TemporaryDirectory() as folder:
        empty, own = Path(os.environ["PREFECT_HOME"], "tables.db"), Path(folder, "prefect.db")
        environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = f"sqlite+aiosqlite:///{own}"
        if empty.exists():
            shutil.copyfile(empty, own)
            environment |= FILLED
        process = start([*SERVE, port], environment, said)
        try:
            wait(address, process, said, environment)
            if not empty.exists():
                _copy_tables(own, empty)
            yield environment
        finally:
            stop([process])


def _copy_tables(used: Path, empty: Path) -> None:
    """Save the tables of a server that has stored nothing yet."""
    empty.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(used)) as source, closing(sqlite3.connect(empty.with_suffix(".part"))) as target:
        source.backup(target)
        # Prefect sets this mode without a timeout: of several connections to a file in another mode, one fails
        target.execute("PRAGMA journal_mode=WAL")
    empty.with_suffix(".part").rename(empty)


@contextmanager
def speaking_to(environment: Mapping[str, str]) -> Iterator[None]:
    """Within the block Prefect's clients in this process speak to the server of an environment."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    with temporary_settings(
        {PREFECT_API_URL: environment["PREFECT_API_URL"], PREFECT_API_AUTH_STRING: environment[CLIENT]}
    ):
        yield


@contextmanager
def running_ui(folder: Path, *pools: str, background: bool = False) -> Iterator[Ui]:
    """A server with the deployments and a worker for each pool; runs start in `folder`. In the `background` of a script
    it ignores Ctrl-C."""
    port = free_port()
    environment = {**os.environ, "PREFECT_HOME": str(folder / "prefect"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "flows.cli", "ui", "--port", str(port), *(f"--pool={pool}" for pool in pools)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_ignore_interrupts if background else mind_signals,
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while "Prefect is at" not in (folder / "log").read_text():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "no server"
            time.sleep(0.5)
        api = f"http://127.0.0.1:{port}/api"
        password = (folder / "prefect" / "gristmill" / "password").read_text()
        yield Ui(process, api, {**environment, "PREFECT_API_URL": api, CLIENT: password}, folder / "log")
    finally:
        process.send_signal(signal.SIGTERM)  # as a service manager stops it; Ctrl-C goes the same way
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/api/health", timeout=5)
