"""Early ends of a run by signals, and Prefect servers that fail."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path

import pytest

from flows.deployments import deploy
from flows.server import check_address, patient_client, start, wait
from flows.stop import stoppable
from storage.errors import ServerError
from storage.files.locks import hold
from tests.flows.commands.test_cli import gristmill

SAY = [sys.executable, "-c", "import sys; print('on the way'); sys.exit('port taken')"]


class Interrupting:
    """Is interrupted by a signal where Python drops the exception."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


def end_one_and_sleep(number: signal.Signals) -> None:
    Interrupting(number)
    time.sleep(30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_within_a_destructor_interrupts_all_the_same(number: signal.Signals) -> None:
    started = time.monotonic()
    with stoppable(), pytest.raises(KeyboardInterrupt):
        end_one_and_sleep(number)
    assert time.monotonic() - started < 20


class Cancelled:
    """Leaves what isn't a signal's where Python drops it."""

    def __del__(self) -> None:
        raise asyncio.CancelledError


def test_what_else_is_dropped_interrupts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: reported.append(dropped.exc_type))
    with stoppable() as stop:
        Cancelled()
        time.sleep(0.3)  # longer than a lost signal needs
    assert (stop.reason, reported) == (None, [asyncio.CancelledError])


TELLS = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)"


def test_what_is_started_hears_ctrl_c_though_a_script_has_this_process_ignore_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with tempfile.TemporaryFile() as said:
            start([sys.executable, "-c", TELLS], dict(os.environ), said).wait()
            said.seek(0)
            assert said.read() == b"True\n"
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_server_that_is_too_busy_is_asked_again() -> None:
    class Busy(BaseHTTPRequestHandler):
        asked = 0

        def do_POST(self) -> None:
            Busy.asked += 1
            given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(503 if Busy.asked == 1 else 200)
            self.end_headers()
            self.wfile.write(json.dumps([given, self.path]).encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with patient_client({"PREFECT_API_URL": f"http://127.0.0.1:{server.server_port}/api"}) as client:
            answer = client.post("/deployments/filter", json={"limit": 1})
        server.shutdown()
    assert (answer.status_code, answer.json(), Busy.asked) == (200, [{"limit": 1}, "/api/deployments/filter"], 2)


def test_a_server_that_exits_at_once_is_quoted() -> None:
    with tempfile.TemporaryFile() as said:
        server = start(SAY, dict(os.environ), said)
        server.wait()
        with pytest.raises(ServerError, match=r"exited at once\.\nIts last output:\non the way\nport taken"):
            wait("http://127.0.0.1:9", server, said, os.environ)


def test_servers_on_one_database_start_one_after_the_other(tmp_path: Path) -> None:
    """Two that create the tables of a new database at once break each other's."""
    home = tmp_path / "home"
    script = "from flows.server import start_lock\nwith start_lock(): print('alone', flush=True)"
    home.mkdir()
    with hold(home / "gristmill-server.lock"):
        other = subprocess.Popen(
            [sys.executable, "-c", script], env={**os.environ, "PREFECT_HOME": str(home)}, stdout=subprocess.PIPE
        )
        with pytest.raises(subprocess.TimeoutExpired):
            other.communicate(timeout=4)
    said, _ = other.communicate(timeout=60)
    assert said == b"alone\n"


def test_a_server_that_is_not_there_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    done = gristmill("run", "smoke", "--to=download", "--store", "/nowhere/store")
    assert done.returncode == 1
    assert not Path("/nowhere").exists()
    assert "No Prefect server answers at http://127.0.0.1:9/api" in done.stderr
    assert "correct PREFECT_API_URL" in done.stderr
    assert "Traceback" not in done.stderr


def interrupts(number: signal.Signals) -> bool:
    """Whether the signal interrupts this process; the interrupt would end the test run if it left a test."""
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_once_and_is_the_reason(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # these tests may run under nohup
    try:
        with stoppable() as stop:
            assert interrupts(number)
            assert stop.reason == number
            assert not interrupts(signal.SIGTERM), "it would disturb what the first began"
            assert stop.reason == number
            assert stop.exit_code == 128 + number
    finally:
        signal.signal(number, before)


def test_under_nohup_a_closed_terminal_stops_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable() as stop:
            assert not interrupts(signal.SIGHUP)
            assert stop.reason is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_deployments_are_registered_with_the_password_of_the_server() -> None:
    given = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            given.append(self.headers["Authorization"])
            self.send_error(500)  # which is not asked again

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/api"
        with pytest.raises(ServerError, match="did not answer /deployments/filter"):
            deploy({"PREFECT_API_URL": address, "PREFECT_API_AUTH_STRING": "me:secret"})
    assert given == [f"Basic {base64.b64encode(b'me:secret').decode()}"]


@pytest.mark.parametrize("address", ["http://user:secret@[bad/api", "127.0.0.1:4200", "http://"])
def test_an_address_that_is_none_is_said_so_before_prefect_looks_at_it(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", address)
    with pytest.raises(ServerError, match="PREFECT_API_URL is not a server's URL") as raised:
        check_address()
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("port", ["0", "99999"])
def test_a_port_that_no_server_can_have_is_refused(port: str) -> None:
    done = gristmill("ui", "--port", port)
    assert done.returncode == 2
    assert "'--port'" in done.stderr
