"""`gristmill ui`: a Prefect server, the deployments and a worker, in one command that stops them all again.

All three start in the current folder, so that runs use the same relative paths as `gristmill run` there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
from rich.console import Console

from storage.errors import ConfigError
from tasks.children.parent import tied_to

DEPLOYMENTS = Path(__file__).parents[1] / "prefect.yaml"
POOL = "gristmill"
START_SECONDS = 180
STOP_SECONDS = 15


def serve(console: Console, port: int) -> None:
    """Run server and worker until Ctrl-C or SIGTERM. Raises ConfigError when the port is taken.

    Both lead sessions of their own, which are ended whole, and are killed by the kernel if this process is.
    """
    address = f"http://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "PREFECT_API_URL": f"{address}/api",
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(port),  # with --port alone the pages keep calling 4200
        "PREFECT_LOGGING_LEVEL": "WARNING",
    }
    if _answers(address):
        raise ConfigError(f"{address} is already in use.", "Choose another port: gristmill ui --port 4201")
    prefect = [sys.executable, "-m", "prefect"]
    children: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        children.append(_start([*prefect, "server", "start"], environment))
        _wait(address, children[0])
        _run([*prefect, "work-pool", "create", POOL, "--type", "process", "--overwrite"], environment)
        _run([*prefect, "--no-prompt", "deploy", "--all", "--prefect-file", str(DEPLOYMENTS)], environment)
        children.append(_start([*prefect, "worker", "start", "--pool", POOL], environment))
        console.print(f"Prefect is at [bold]{address}[/]  (Ctrl-C stops it)")
        console.print(f"Your own runs show up there with PREFECT_API_URL={address}/api gristmill run")
        children[0].wait()
    finally:
        for child in reversed(children):
            _signal(child, signal.SIGTERM)
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOP_SECONDS)
            _signal(child, signal.SIGKILL)


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        tied_to(os.getpid(), command),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To the child's whole process group: the worker's runs too."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"`{' '.join(command[2:])}` failed:\n{done.stdout[-800:]}{done.stderr[-800:]}",
            "Fix what the message names.",
        )


def _wait(address: str, server: subprocess.Popen[bytes]) -> None:
    started = time.monotonic()
    while time.monotonic() - started < START_SECONDS:
        if server.poll() is not None:
            raise ConfigError("The Prefect server exited at once.", "Run `prefect server start` to see why.")
        if _answers(address):
            return
        time.sleep(0.5)
    raise ConfigError(f"No Prefect server after {START_SECONDS} s.", "Run `prefect server start` to see why.")


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/api/health", timeout=2).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
