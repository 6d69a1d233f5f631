"""`gristmill ui`: starts a Prefect server, the deployments and workers, and stops them at its end.

All start in the current folder, so that runs use the same relative paths as `gristmill run` there. One that dies is
restarted, unless it dies repeatedly.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO

from rich.console import Console
from rich.markup import escape

from flows.commands.ui.ending import Ending
from flows.commands.ui.health import Health
from flows.commands.ui.trial import trial
from flows.deployed.automations import HEARTBEAT, HEARTBEAT_SECONDS, automate
from flows.deployed.orphaned_tasks import LeftOpen
from flows.deployments import POOL, deploy
from flows.guard.password import CLIENT, CODE, SERVER, password_file, password_serves, ui_password, variables
from flows.guard.sign_in import address as sign_in
from flows.server import SERVE, last_lines, start, start_lock, stop, wait
from flows.stop import stoppable
from storage.errors import ConfigError, ServerError

LOOK_SECONDS = 1.0
MOST_ENDS, WITHIN_SECONDS = 3, 600.0  # a child that ends this often in this time is not restarted


@dataclass
class _Child:
    """A server or a worker, and the function that starts it."""

    name: str
    begin: Callable[[], subprocess.Popen[bytes]]
    process: subprocess.Popen[bytes] | None = None
    ends: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Start or restart it."""
        self.process = self.begin()

    def has_ended(self) -> bool:
        """Whether it must be restarted. Counts the ends."""
        if self.process is not None and self.process.poll() is None:
            return False
        self.ends = [*(each for each in self.ends if time.monotonic() - each < WITHIN_SECONDS), time.monotonic()]
        return True


def serve(console: Console, port: int, pools: Sequence[str], notify: str | None = None) -> None:
    """Run a server and a worker, and one for each further pool in `pools`, until Ctrl-C, SIGTERM or SIGHUP. `notify` is
    a Prefect block to notify of failed runs.

    Raises ConfigError if the port is taken, ServerError if the server can't start or one of them ends repeatedly.

    Each leads its own session, which ends as a whole, and the kernel kills it if this process is killed. Deployments'
    runs end first, in order, and completely.
    """
    address = f"http://127.0.0.1:{port}"
    given, code = os.environ.get(SERVER), secrets.token_urlsafe(24)
    password = given or ui_password()
    if not password.isascii():
        raise ConfigError(
            f"{SERVER} has non-ASCII characters, which Prefect can't compare.", "Choose another password."
        )
    environment = {
        HEARTBEAT: str(HEARTBEAT_SECONDS),
        "PREFECT_SERVER_DATABASE_TIMEOUT": "60",  # SQLite has one writer at a time
        **os.environ,
        "PREFECT_API_URL": f"{address}/api",
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(port),  # otherwise the pages call port 4200
        "PREFECT_SERVER_UI_API_URL": "/api",  # relative, so that it works under every name of the server
        "PREFECT_LOGGING_LEVEL": "WARNING",
        **variables(password),
    }
    server = [*SERVE, str(port), *([] if given else [str(password_file())])]
    with stoppable() as stopped, ExitStack() as held:
        said = held.enter_context(tempfile.TemporaryFile())
        children = _children(address, server, {**environment, CODE: code}, environment, pools, said)
        ending = Ending(address, environment)
        try:
            _check_free(port)
            if not given:
                held.enter_context(password_serves(port))
            console.print("Starting Prefect's server: about 20 s, the first time longer.", style="dim")
            children[0].start()
            console.print("Registering the deployments of prefect.yaml.", style="dim")
            deploy(environment, pools)
            automate(environment, notify)
            if notify is not None and (why := trial(environment, notify, address)):
                console.print(f"[yellow]{escape(notify)} can't be notified:[/] {escape(why)}", highlight=False)
            for worker in children[1:]:
                worker.start()
            _greet(console, address, code, given=bool(given))
            _watch(console, children, Health(address, said, environment), LeftOpen(address, environment), said)
        except KeyboardInterrupt:
            if children[0].process is not None:
                console.print("Ending the workers and the server.", style="dim")
                ending.in_order(console)
            raise SystemExit(stopped.exit_code) from None
        finally:
            try:
                stop([child.process for child in children if child.process is not None])
            finally:
                if children[0].process is not None:
                    ending.at_once()


def _greet(console: Console, address: str, code: str, *, given: bool) -> None:
    """Print the address of the pages, and what commands need. The sign-in code is shown only at a terminal, as others
    may read a log. `given`: the user set the password."""
    shown = sign_in(address, code) if console.is_terminal else address
    console.print(f"Prefect is at [bold]{shown}[/]  (Ctrl-C stops it)", soft_wrap=True)
    console.print(f"Your own runs show up there with PREFECT_API_URL={address}/api gristmill run", soft_wrap=True)
    if not given:
        path = escape(str(password_file()))
        console.print(
            f"Its password, for a browser and for prefect's own commands ({CLIENT}), is in {path}", soft_wrap=True
        )


def _children(
    address: str,
    server: list[str],
    of_server: dict[str, str],
    environment: dict[str, str],
    pools: Sequence[str],
    said: IO[bytes],
) -> list[_Child]:
    """The server, which logs only failures, then a worker for each pool, whose runs log to their pages."""
    prefect = [sys.executable, "-m", "prefect"]

    def starting() -> subprocess.Popen[bytes]:
        with start_lock():
            process = start(server, of_server, said)
            try:
                wait(address, process, said, environment)
            except (KeyboardInterrupt, ServerError):
                stop([process])
                raise
        return process

    def working(pool: str) -> Callable[[], subprocess.Popen[bytes]]:
        command = [*prefect, "worker", "start", "--pool", pool, "--name", pool]
        return lambda: start(command, {**environment, "PREFECT_LOGGING_LEVEL": "INFO"})

    workers = [_Child(f"worker of {pool}", working(pool)) for pool in dict.fromkeys((POOL, *pools))]
    return [_Child("Prefect server", starting), *workers]


def _watch(console: Console, children: list[_Child], health: Health, left_open: LeftOpen, said: IO[bytes]) -> None:
    """Forever restart what has ended, print news of their health, and end the open tasks of dead runs. Raises
    ServerError for a child that ends repeatedly."""
    while True:
        for child in children:
            if not child.has_ended():
                continue
            last = last_lines(said) if child is children[0] else ""
            if len(child.ends) >= MOST_ENDS:
                raise ServerError(
                    f"The {child.name} ended {MOST_ENDS} times within {WITHIN_SECONDS / 60:.0f} minutes.{last}",
                    "Fix what it names, if anything, and restart: gristmill ui",
                )
            console.print(f"[yellow]The {child.name} ended and is restarted.[/]{escape(last)}", highlight=False)
            child.start()
            if child is children[0]:
                for worker in children[1:]:
                    worker.ends.clear()  # they may have ended because the server had
        for line in health.news(len(children) - 1):
            console.print(line, highlight=False, soft_wrap=True)
        left_open.look()
        time.sleep(LOOK_SECONDS)


def _check_free(port: int) -> None:
    """Raises ConfigError if another program listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port of a server that just ended is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"Port {port} is already in use ({error.strerror}).",
                f"Choose another one: gristmill ui --port {port + 1}",
            ) from error
