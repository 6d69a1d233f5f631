"""`gristmill ui`: a Prefect server, the deployments and a worker, in one command that stops them all again.

All three start in the current folder, so that runs use the same relative paths as `gristmill run` there.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from rich.console import Console

from flows.deployments import POOL, deploy
from flows.server import last_lines, only_own_pages, start, starting_alone, stop, wait
from flows.stop import stoppable
from storage.errors import ConfigError, ServerError


def serve(console: Console, port: int, pools: Sequence[str]) -> None:
    """Run server and a worker, and one for each of more `pools`, until Ctrl-C, SIGTERM or SIGHUP.

    Raises ConfigError when the port is taken, ServerError when the server can't start or ends by itself.

    Both lead sessions of their own, which are ended whole, and are killed by the kernel if this process is.
    """
    address = f"http://127.0.0.1:{port}"
    environment = {
        **only_own_pages(port),
        **os.environ,
        "PREFECT_API_URL": f"{address}/api",
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(port),  # with --port alone the pages keep calling 4200
        "PREFECT_LOGGING_LEVEL": "WARNING",
    }
    prefect = [sys.executable, "-m", "prefect"]
    children: list[subprocess.Popen[bytes]] = []
    with stoppable() as stopped, tempfile.TemporaryFile() as said:
        try:
            with starting_alone():
                _check_free(port)
                children.append(start([*prefect, "server", "start"], environment, said))
                wait(address, children[0], said)
            deploy(environment, pools)
            told = {**environment, "PREFECT_LOGGING_LEVEL": "INFO"}  # of what its runs log, their pages show this
            for pool in (POOL, *pools):
                children.append(start([*prefect, "worker", "start", "--pool", pool, "--name", pool], told))
            console.print(f"Prefect is at [bold]{address}[/]  (Ctrl-C stops it)")
            console.print(f"Your own runs show up there with PREFECT_API_URL={address}/api gristmill run")
            children[0].wait()
            raise ServerError(f"The Prefect server ended.{last_lines(said)}", "Start it again: gristmill ui")
        except KeyboardInterrupt:
            raise SystemExit(stopped.exit_code) from None
        finally:
            stop(children)


def _check_free(port: int) -> None:
    """Raises ConfigError for a port that another program listens on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # that of a server that has just ended is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"Port {port} is already in use ({error.strerror}).",
                f"Choose another one: gristmill ui --port {port + 1}",
            ) from error
