"""`gristmill ui`: a Prefect server, the deployments and a worker, in one command that stops them all again.

All three start in the current folder, so that runs use the same relative paths as `gristmill run` there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from flows.server import answers, start, stop, wait
from storage.errors import ConfigError

DEPLOYMENTS = Path(__file__).parents[1] / "prefect.yaml"
POOL = "gristmill"


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
    if answers(address):
        raise ConfigError(f"{address} is already in use.", "Choose another port: gristmill ui --port 4201")
    prefect = [sys.executable, "-m", "prefect"]
    children: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        children.append(start([*prefect, "server", "start"], environment))
        wait(address, children[0])
        _run([*prefect, "work-pool", "create", POOL, "--type", "process", "--overwrite"], environment)
        _run([*prefect, "--no-prompt", "deploy", "--all", "--prefect-file", str(DEPLOYMENTS)], environment)
        children.append(start([*prefect, "worker", "start", "--pool", POOL], environment))
        console.print(f"Prefect is at [bold]{address}[/]  (Ctrl-C stops it)")
        console.print(f"Your own runs show up there with PREFECT_API_URL={address}/api gristmill run")
        children[0].wait()
    finally:
        stop(children)


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"`{' '.join(command[2:])}` failed:\n{done.stdout[-800:]}{done.stderr[-800:]}",
            "Fix what the message names.",
        )
