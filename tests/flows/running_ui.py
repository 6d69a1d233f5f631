"""`gristmill ui` as a process of its own, on a free port, outside the checkout; gone at the end of the block."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tasks.children.launchers import free_port
from tests.pipeline.runs import mind_signals

ROOT = Path(__file__).parents[2]
START_SECONDS = 180.0


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
        found: list[dict[str, Any]] = httpx.post(f"{self.api}{path}", json=body, timeout=30).raise_for_status().json()
        return found

    def logs(self, flow_run: str) -> list[str]:
        """What a flow run and its tasks have logged."""
        wanted = {"flow_run_id": {"any_": [flow_run]}}
        return [str(line["message"]) for line in self.asked("/logs/filter", logs=wanted, sort="TIMESTAMP_ASC")]


def until(what: str, seconds: float, holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


@contextmanager
def running_ui(folder: Path, *pools: str) -> Iterator[Ui]:
    """A server with the deployments and a worker for each pool; runs start in `folder`."""
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
            preexec_fn=mind_signals,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while "Prefect is at" not in (folder / "log").read_text():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "no server"
            time.sleep(0.5)
        api = f"http://127.0.0.1:{port}/api"
        yield Ui(process, api, {**environment, "PREFECT_API_URL": api}, folder / "log")
    finally:
        process.send_signal(signal.SIGTERM)  # as a service manager stops it; Ctrl-C goes the same way
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/api/health", timeout=5)
