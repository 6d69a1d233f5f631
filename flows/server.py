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
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
from pydantic import AnyHttpUrl, TypeAdapter, ValidationError

from flows.database import Database, home, own_database
from flows.guard.password import new, take, variables
from flows.stop import AGAIN, Stop
from storage.errors import ServerError
from storage.files.locks import hold
from tasks.children.die_with_parent import tied_to
from tasks.children.launchers import free_port

if TYPE_CHECKING:
    from prefect.settings import Settings
    from prefect.settings.legacy import Setting

SERVE = [sys.executable, "-m", "flows.guard"]
# As Prefect starts its own: without pages, and without services that no single run needs. Nor does one need what feeds
# pages with news, or the types of a store's calls checked, which Prefect's queue comes with
EPHEMERAL = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    "PREFECT_SERVER_EVENTS_STREAM_OUT_ENABLED": "false",
    "PY_KEY_VALUE_DISABLE_BEARTYPE": "true",
}
START_SECONDS = 180
STOP_SECONDS = 15
BUSY_SECONDS = 60  # for which a request is repeated
LAST_LINES = 10
START_RETRIES = 2  # 6 seconds
NO_PASSWORD = "Set PREFECT_API_AUTH_STRING to that of the server; that of `gristmill ui` is in its Prefect home."
GIVEN = "Start it, correct PREFECT_API_URL, or unset it: a run then has a server of its own."


def check_address() -> None:
    """See to it that Prefect can speak to the server of PREFECT_API_URL, before it is imported: one of `gristmill ui`
    wants a password. Raises ServerError for an address that is no URL."""
    address = os.environ.get("PREFECT_API_URL")
    if address is None:
        return
    try:
        TypeAdapter(AnyHttpUrl).validate_python(address)
    except ValidationError as error:
        problem = "PREFECT_API_URL is no URL of a server."
        raise ServerError(problem, "Give one such as http://127.0.0.1:4200/api.") from error
    os.environ |= take(os.environ)


@contextmanager
def temporary_server(stop_run: Stop, meanwhile: Callable[[], None]) -> Iterator[None]:
    """A server for one run, with a database of its own, unless PREFECT_API_URL names one. It is ended last. What needs
    no server yet is done `meanwhile`, as it takes seconds to start.

    When it ends before the run, the run is stopped: Prefect would repeat each request for a minute, then fail.
    """
    if address := os.environ.get("PREFECT_API_URL"):
        meanwhile()
        with given_server(address, stop_run):
            yield
        return
    port, password = str(free_port()), new()
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
                watched(children[0], settings, said, stop_run),
            ):
                yield
        finally:
            for child in children:  # with its database, so that there is nothing to end in order
                _signal(child, signal.SIGKILL)
                child.wait()


def _of_own_server(address: str, password: str) -> dict[Setting, str | None]:
    """Settings of a run whose server goes with it: nobody waits for its heartbeats, whose thread takes a second to
    end."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY

    return {PREFECT_API_URL: address, PREFECT_API_AUTH_STRING: password, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}


@contextmanager
def _database() -> Iterator[Database]:
    with ExitStack() as held:
        try:
            database = held.enter_context(own_database())
        except OSError as error:
            raise ServerError(
                f"No database for the Prefect server can be made in {home()}: {error.strerror}.",
                "Set HOME, or PREFECT_HOME, to a folder where this user may write.",
            ) from error
        yield database


@contextmanager
def given_server(address: str, stop_run: Stop) -> Iterator[None]:
    """The server that PREFECT_API_URL names. One that goes away for a while is waited for: Prefect repeats a request
    for about a minute (PREFECT_CLIENT_MAX_RETRIES).

    Raises ServerError for one that does not answer, at the beginning or later, and for one of another version.
    """
    from prefect.settings import PREFECT_INTERNAL_LOGGING_LEVEL, temporary_settings

    _check_given(address)
    try:
        # Prefect's own threads need not complain of it beside the sentence
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
            raise ServerError(f"The Prefect server at {address} wants another password.", NO_PASSWORD) from error
        if error is not None:
            raise ServerError(f"No Prefect server answers at {address}: {_said(error)}.", GIVEN) from error
        try:
            client.raise_for_api_version_mismatch()
        except (RuntimeError, ValueError) as wrong:  # the second of a version that is none
            raise ServerError(f"The Prefect server at {address} can't be used: {_said(wrong)}.", GIVEN) from wrong


def _status(error: httpx.HTTPError) -> str:
    return f"answered {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else "is gone"


def _said(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")


@contextmanager
def watched(server: subprocess.Popen[bytes], settings: Settings, said: IO[bytes], stop_run: Stop) -> Iterator[None]:
    """Within the block, the end of the server stops the run, and no request is repeated then."""
    over = threading.Event()

    def watch() -> None:
        server.wait()
        if not over.is_set():
            settings.client.max_retries = 0  # nobody will answer
            settings.internal.logging_level = "CRITICAL"  # nor need Prefect's own threads complain of it
            stop_run.because(ServerError(f"The Prefect server ended during the run.{last_lines(said)}", AGAIN))

    watcher = threading.Thread(target=watch, name="prefect-server", daemon=True)
    watcher.start()
    try:
        yield
    except httpx.HTTPError as error:
        watcher.join(1)  # a request can fail before the watcher has noticed why
        if stop_run.reason is None:
            problem = f"The Prefect server {_status(error)} during the run.{last_lines(said)}"
            raise ServerError(problem, f"{see_why()} {AGAIN}") from error
        raise
    finally:
        over.set()


@contextmanager
def starting_alone() -> Iterator[None]:
    """Within the block, nobody else starts a server on Prefect's own database: the first one creates its tables, and
    two that do so at once break each other's."""
    if not os.access(home(), os.W_OK):  # the server itself says what is wrong
        yield
        return
    with hold(home() / "gristmill-server.lock"):
        yield


def see_why() -> str:
    """What to do about a server that fails."""
    return f"Mend what it names: its database is in {home()}, where there must be room and leave to write."


def credentials(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The name and the password by which a server is asked, if it has one."""
    name, _, password = environment.get("PREFECT_API_AUTH_STRING", "").partition(":")
    return (name, password) if name else None


class _Patient(httpx.HTTPTransport):
    """Asks once more where the server is too busy, as its SQLite is that has one writer."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See the base."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            answer = super().handle_request(request)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                return answer
            answer.close()
            time.sleep(1)


def patient_client(environment: Mapping[str, str]) -> httpx.Client:
    """A client of the server of PREFECT_API_URL, which waits where that is too busy."""
    address, who = environment["PREFECT_API_URL"], credentials(environment)
    return httpx.Client(base_url=address, auth=who, timeout=30, transport=_Patient())


def start(
    command: list[str], environment: dict[str, str], said: IO[bytes] | int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """A child that leads a session of its own, ends with this process, and speaks into `said` alone."""
    return subprocess.Popen(
        tied_to(os.getpid(), command),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def last_lines(said: IO[bytes]) -> str:
    """The end of what a server said, to be put after a sentence; nothing for a silent one. Of tracebacks only their
    errors are quoted, which are not indented."""
    said.seek(0)
    text = said.read().decode(errors="replace")
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith("  ")]
    return "".join(f"\n{line}" for line in ["It said last:", *lines[-LAST_LINES:]]) if lines else ""


def stop(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """TERM, the last first, then KILL after `STOP_SECONDS`, each to the child's whole group: a worker's runs too."""
    for child in reversed(children):
        _signal(child, signal.SIGTERM)
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(STOP_SECONDS)
        _signal(child, signal.SIGKILL)
        child.wait()


def wait(address: str, server: subprocess.Popen[bytes], said: IO[bytes], environment: Mapping[str, str]) -> None:
    """Until the server answers. Raises ServerError if it ends or stays silent."""
    started = time.monotonic()
    while time.monotonic() - started < START_SECONDS:
        if server.poll() is not None:
            raise ServerError(f"The Prefect server exited at once.{last_lines(said)}", see_why())
        if answers(address, credentials(environment)):
            return
        time.sleep(0.1)
    raise ServerError(f"No Prefect server after {START_SECONDS} s.{last_lines(said)}", see_why())


def answers(address: str, who: tuple[str, str] | None) -> bool:
    """Whether a Prefect server is there, to whoever has its name and password, if it has one."""
    try:
        parts = urlsplit(address)
        socket.create_connection((parts.hostname or "", parts.port or 80), 2).close()  # a client takes longer to make
        # Without TLS there is no certificate to check, and loading the authorities takes longer than the answer
        return httpx.get(f"{address}/api/health", auth=who, timeout=2, verify=False).status_code == httpx.codes.OK
    except (httpx.HTTPError, OSError):
        return False


def hurry() -> bool:
    """Somebody has stopped the run: wait for no server that is away. Whether the server is there."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, get_current_settings

    who = credentials({"PREFECT_API_AUTH_STRING": PREFECT_API_AUTH_STRING.value() or ""})
    there = answers((PREFECT_API_URL.value() or "").removesuffix("/api"), who)
    if not there:
        get_current_settings().client.max_retries = 0
    return there


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)
