"""The server that PREFECT_API_URL names, as a run uses it, and that of `gristmill ui`, a child in its own session.

The kernel kills such a child if this process is killed. Ctrl-C at a terminal and many service managers signal the whole
process group. A server in that group would die before the worker that has to report to it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

import httpx
from pydantic import AnyHttpUrl, TypeAdapter, ValidationError

from flows.guard.password import client_variables, home
from flows.stop import AGAIN, Stop
from storage.errors import ServerError, harmless
from storage.files.locks import hold
from tasks.children.die_with_parent import tied_to

SERVE = [sys.executable, "-m", "flows.guard"]
START_SECONDS = 180
STOP_SECONDS = 15
BUSY_SECONDS = 60  # of repeating a request to a busy server
LAST_LINES = 10
START_RETRIES = 2  # 6 seconds
NO_PASSWORD = "Set PREFECT_API_AUTH_STRING to the server's. `gristmill ui` keeps its own in Prefect's home."
GIVEN = "Start it, correct PREFECT_API_URL, or unset it: then a run goes on without pages."


def check_address() -> None:
    """Prepare the environment for the server of PREFECT_API_URL, before Prefect is imported: set the password of
    `gristmill ui`. Raises ServerError if the address is not a URL, or for a proxy that no client can use."""
    if getproxies_environment():
        try:
            httpx.Client().close()
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            raise ServerError(
                f"A proxy of the environment can't be used: {harmless(str(error))}",
                "Correct or unset HTTP_PROXY, HTTPS_PROXY and ALL_PROXY.",
            ) from error
    address = os.environ.get("PREFECT_API_URL")
    if address is None:
        return
    try:
        TypeAdapter(AnyHttpUrl).validate_python(address)
    except ValidationError as error:
        problem = "PREFECT_API_URL is not a server's URL."
        raise ServerError(problem, "Give one such as http://127.0.0.1:4200/api.") from error
    os.environ |= client_variables(os.environ)


@contextmanager
def named_server(address: str, stop_run: Stop) -> Iterator[None]:
    """Use the server that PREFECT_API_URL names. If it is away for a while, Prefect repeats each request for about a
    minute (PREFECT_CLIENT_MAX_RETRIES).

    Raises ServerError if it does not answer, at the start or later, or has another version.
    """
    from prefect.settings import PREFECT_INTERNAL_LOGGING_LEVEL, temporary_settings

    _check_given(address)
    try:
        # The error below says enough: Prefect's own threads need not log it too
        with temporary_settings({PREFECT_INTERNAL_LOGGING_LEVEL: "CRITICAL"}):
            yield
    except httpx.HTTPError as error:
        if stop_run.reason is not None:
            raise
        raise ServerError(
            f"The Prefect server at {address} {_status(error)} during the run: {_said(error)}.", f"{GIVEN} {AGAIN}"
        ) from error


def _check_given(address: str) -> None:
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: START_RETRIES}), get_client(sync_client=True) as client:
        error = client.api_healthcheck()
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.UNAUTHORIZED:
            raise ServerError(f"The Prefect server at {address} has another password.", NO_PASSWORD) from error
        if error is not None:
            raise ServerError(f"No Prefect server answers at {address}: {_said(error)}.", GIVEN) from error
        try:
            client.raise_for_api_version_mismatch()
        except (RuntimeError, ValueError) as wrong:  # ValueError for an invalid version
            raise ServerError(f"The Prefect server at {address} can't be used: {_said(wrong)}.", GIVEN) from wrong


def _status(error: httpx.HTTPError) -> str:
    return f"answered {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else "is gone"


def _said(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")


@contextmanager
def start_lock() -> Iterator[None]:
    """Within the block, nobody else starts a server on Prefect's default database: the first one creates its tables,
    and two at once would break each other's."""
    if not os.access(home(), os.W_OK):  # the server itself reports that
        yield
        return
    with hold(home() / "gristmill-server.lock"):
        yield


def see_why() -> str:
    """The remedy for a failing server."""
    return f"Fix what it names. Its database is in {home()}, which must be writable and have free space."


def credentials(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The name and password for requests to a server, if it has a password."""
    name, _, password = environment.get("PREFECT_API_AUTH_STRING", "").partition(":")
    return (name, password) if name else None


class _Patient(httpx.HTTPTransport):
    """Repeats a request if the server is too busy, as its SQLite has one writer."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, again while the server is too busy."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            answer = super().handle_request(request)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                return answer
            answer.close()
            time.sleep(1)


def patient_client(environment: Mapping[str, str]) -> httpx.Client:
    """A client of the server of PREFECT_API_URL that waits while the server is too busy."""
    address, who = environment["PREFECT_API_URL"], credentials(environment)
    return httpx.Client(base_url=address, auth=who, timeout=30, transport=_Patient())


def start(
    command: list[str], environment: dict[str, str], said: IO[bytes] | int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a child that leads its own session, ends with this process, and prints only into `said`."""
    return subprocess.Popen(
        tied_to(os.getpid(), command),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def last_lines(said: IO[bytes]) -> str:
    """The last lines of a server's output, to append to a sentence, or empty for a silent one. Of tracebacks only the
    errors, which are not indented."""
    said.seek(0)
    text = said.read().decode(errors="replace")
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith("  ")]
    return "".join(f"\n{line}" for line in ["Its last output:", *lines[-LAST_LINES:]]) if lines else ""


def stop(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Send TERM, to the last child first, then KILL after `STOP_SECONDS`, to each child's whole group with its runs."""
    for child in reversed(children):
        _signal(child, signal.SIGTERM)
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(STOP_SECONDS)
        _signal(child, signal.SIGKILL)
        child.wait()


def wait(address: str, server: subprocess.Popen[bytes], said: IO[bytes], environment: Mapping[str, str]) -> None:
    """Wait until the server answers. Raises ServerError if it ends or stays silent."""
    started = time.monotonic()
    while time.monotonic() - started < START_SECONDS:
        if server.poll() is not None:
            raise ServerError(f"The Prefect server exited at once.{last_lines(said)}", see_why())
        if answers(address, credentials(environment)):
            return
        time.sleep(0.1)
    raise ServerError(f"The Prefect server did not answer within {START_SECONDS} s.{last_lines(said)}", see_why())


def answers(address: str, who: tuple[str, str] | None) -> bool:
    """Whether a Prefect server answers a request with this name and password, if any."""
    try:
        parts = urlsplit(address)
        socket.create_connection((parts.hostname or "", parts.port or 80), 2).close()  # faster than making a client
        # HTTP has no certificate to check, and loading the authorities takes longer than the answer
        return httpx.get(f"{address}/api/health", auth=who, timeout=2, verify=False).status_code == httpx.codes.OK
    except (httpx.HTTPError, OSError):
        return False


def hurry() -> bool:
    """Make requests fail at once if the server is away, as somebody has stopped the run. Returns whether it answers."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, get_current_settings

    who = credentials({"PREFECT_API_AUTH_STRING": PREFECT_API_AUTH_STRING.value() or ""})
    answering = answers((PREFECT_API_URL.value() or "").removesuffix("/api"), who)
    if not answering:
        get_current_settings().client.max_retries = 0
    return answering


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)
