"""Prefect's server as a child process in its own session. The kernel kills it if this process is killed.

Ctrl-C at a terminal and many service managers signal the whole process group. A server in that group would die first,
and the run would wait minutes for it instead of reporting its end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

import httpx
from pydantic import AnyHttpUrl, TypeAdapter, ValidationError

from flows.database import Database, home, own_database
from flows.guard.password import client_variables, new_password, variables
from flows.stop import AGAIN, Stop
from storage.errors import ServerError, harmless
from storage.files.locks import hold
from tasks.children.die_with_parent import tied_to
from tasks.children.launchers import free_port

if TYPE_CHECKING:
    from prefect.settings import Settings
    from prefect.settings.legacy import Setting

SERVE = [sys.executable, "-m", "flows.guard"]
# As Prefect starts its own server: without pages and services that a single run doesn't need. It also doesn't need the
# stream of events for pages, or runtime type checks of calls of a library that Prefect's queue uses
EPHEMERAL = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    "PREFECT_SERVER_EVENTS_STREAM_OUT_ENABLED": "false",
    "PY_KEY_VALUE_DISABLE_BEARTYPE": "true",
}
START_SECONDS = 180
STOP_SECONDS = 15
BUSY_SECONDS = 60  # of repeating a request to a busy server
LAST_LINES = 10
START_RETRIES = 2  # 6 seconds
NO_PASSWORD = "Set PREFECT_API_AUTH_STRING to the server's. `gristmill ui` keeps its own in Prefect's home."
GIVEN = "Start it, correct PREFECT_API_URL, or unset it: then a run starts its own server."


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
def temporary_server(stop_run: Stop, meanwhile: Callable[[], None]) -> Iterator[None]:
    """A server for one run, with its own database, unless PREFECT_API_URL names one. It ends last. As it takes seconds
    to start, `meanwhile` does what doesn't need it yet.

    If it ends before the run, the run is stopped: Prefect would repeat each request for a minute, then fail.
    """
    if address := os.environ.get("PREFECT_API_URL"):
        meanwhile()
        with named_server(address, stop_run):
            yield
        return
    port, password = str(free_port()), new_password()
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as said, _database() as database:
        environment = {**os.environ, **EPHEMERAL, **database.settings, **variables(password)}
        children: list[subprocess.Popen[bytes]] = []
        try:
            children.append(start([*SERVE, port], environment, said))
            meanwhile()
            from prefect.settings import temporary_settings

            wait(address, children[0], said, environment)
            database.keep_empty()
            with (
                temporary_settings(_of_own_server(f"{address}/api", password)) as settings,
                watch_server(children[0], settings, said, stop_run),
            ):
                yield
        finally:
            for child in children:  # its database is deleted too, so it needs no orderly end
                _signal(child, signal.SIGKILL)
                child.wait()


def _of_own_server(address: str, password: str) -> dict[Setting, str | None]:
    """Prefect's settings for a run with its own server. Without heartbeats: nobody reads them, and their thread takes a
    second to end."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY

    return {PREFECT_API_URL: address, PREFECT_API_AUTH_STRING: password, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}


@contextmanager
def _database() -> Iterator[Database]:
    with ExitStack() as held:
        try:
            database = held.enter_context(own_database())
        except OSError as error:
            raise ServerError(
                f"The Prefect server's database can't be created in {home()}: {error.strerror}.",
                "Set HOME or PREFECT_HOME to a folder that this user may write.",
            ) from error
        yield database


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
def watch_server(
    server: subprocess.Popen[bytes], settings: Settings, said: IO[bytes], stop_run: Stop
) -> Iterator[None]:
    """Within the block, the end of the server stops the run, without repeating requests."""
    over = threading.Event()

    def watch() -> None:
        server.wait()
        if not over.is_set():
            settings.client.max_retries = 0  # no server will answer
            settings.internal.logging_level = "CRITICAL"  # and Prefect's own threads need not log that
            stop_run.because(ServerError(f"The Prefect server ended during the run.{last_lines(said)}", AGAIN))

    watcher = threading.Thread(target=watch, name="prefect-server", daemon=True)
    watcher.start()
    try:
        yield
    except httpx.HTTPError as error:
        watcher.join(1)  # a request can fail before the watcher notices the end
        if stop_run.reason is None:
            problem = f"The Prefect server {_status(error)} during the run.{last_lines(said)}"
            raise ServerError(problem, f"{see_why()} {AGAIN}") from error
        raise
    finally:
        over.set()


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
