"""Prefect's server as a child: in a session of its own, killed by the kernel if this process is.

Ctrl-C at a terminal and many service managers signal the whole process group. A server in that group would die first,
and the run would wait for it for minutes instead of reporting its end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from storage.errors import ConfigError
from tasks.children.parent import tied_to

START_SECONDS = 180
STOP_SECONDS = 15


@contextmanager
def temporary_server() -> Iterator[None]:
    """A server for one run, on a free port, unless PREFECT_API_URL names one. It is ended last."""
    if os.environ.get("PREFECT_API_URL"):
        yield
        return
    import prefect
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # As Prefect starts its own: without pages, and without services that no single run needs
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(Path(prefect.__file__).parents[1]), "--factory"]
    command += ["prefect.server.api.server:create_app", "--host", "127.0.0.1", "--port", port, "--log-level", "error"]
    given = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    server = start([*command, "--lifespan", "on"], {**os.environ, **given})
    try:
        address = f"http://127.0.0.1:{port}"
        wait(address, server)
        with temporary_settings({PREFECT_API_URL: f"{address}/api"}):
            yield
    finally:
        stop([server])


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A silent child that leads a session of its own and ends with this process."""
    return subprocess.Popen(
        tied_to(os.getpid(), command),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def stop(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """TERM, the last first, then KILL after `STOP_SECONDS`, each to the child's whole group: a worker's runs too."""
    for child in reversed(children):
        _signal(child, signal.SIGTERM)
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(STOP_SECONDS)
        _signal(child, signal.SIGKILL)
        child.wait()


def wait(address: str, server: subprocess.Popen[bytes]) -> None:
    """Until the server answers. Raises ConfigError if it ends or stays silent."""
    started = time.monotonic()
    while time.monotonic() - started < START_SECONDS:
        if server.poll() is not None:
            raise ConfigError("The Prefect server exited at once.", "Run `prefect server start` to see why.")
        if answers(address):
            return
        time.sleep(0.1)
    raise ConfigError(f"No Prefect server after {START_SECONDS} s.", "Run `prefect server start` to see why.")


def answers(address: str) -> bool:
    """Whether a Prefect server is there."""
    try:
        return httpx.get(f"{address}/api/health", timeout=2).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)
