"""The password of `gristmill ui`: a file that only its user can read, the same at each start, and found by commands."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flows.guard import password
from flows.guard.password import CLIENT, WHOLE, client_variables, password_file, password_serves, ui_password
from storage.errors import ServerError
from tests.flows.running_ui import ROOT


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv(CLIENT, raising=False)
    return tmp_path


def test_it_stays_and_nobody_else_can_read_it(home: Path) -> None:
    first = ui_password()
    assert WHOLE.fullmatch(first)
    assert password_file().stat().st_mode & 0o777 == 0o600
    assert [path.name for path in password_file().parent.iterdir() if path.name.startswith("password-")] == []
    assert ui_password() == first
    assert password.new_password() != password.new_password()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622, 0o777, 0o400, 0o700])
def test_one_that_others_could_have_read_is_made_anew(mode: int, home: Path) -> None:
    first = ui_password()
    password_file().chmod(mode)
    assert (ui_password() == first) is (mode & 0o077 == 0)
    assert password_file().stat().st_mode & 0o077 == 0


def test_one_that_a_person_wrote_stays(home: Path) -> None:
    ui_password()
    password_file().write_text("me:a-long-password-of-mine\n")
    assert ui_password() == "me:a-long-password-of-mine"


def test_a_pipe_or_a_link_in_its_place_hangs_nothing(home: Path) -> None:
    first = ui_password()
    password_file().unlink()
    os.mkfifo(password_file())
    assert ui_password() != first
    password_file().rename(password_file().with_name("elsewhere"))
    password_file().symlink_to("elsewhere")
    with pytest.raises(ServerError, match="symbolic links"):
        ui_password()


@pytest.mark.parametrize("damaged", [b"", b"gristmill:", b"gristmill:short", b"\xff" * 42, b"x" * 10_000, b"\n\n"])
def test_one_that_is_damaged_is_made_anew(damaged: bytes, home: Path) -> None:
    ui_password()
    password_file().write_bytes(damaged)
    assert WHOLE.fullmatch(ui_password())


def test_several_that_start_at_once_have_the_same(home: Path) -> None:
    command = [sys.executable, "-c", "from flows.guard.password import ui_password; print(ui_password())"]

    def started(number: int) -> str:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(6) as threads:
        assert len(set(threads.map(started, range(6)))) == 1


def test_where_it_cannot_be_kept_is_said(home: Path, tmp_path: Path) -> None:
    password_file().parent.mkdir(parents=True)
    password_file().mkdir()
    with pytest.raises(ServerError, match=r"can't be kept in .*/password: "):
        ui_password()


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("http://127.0.0.1:4200/api", True),
        ("http://localhost:4200/api", False),
        ("http://127.0.0.1:4201/api", False),
        ("https://127.0.0.1:4200/api", False),
        ("http://10.0.0.1:4200/api", False),
        ("http://127.0.0.1:x/api", False),
        ("http://localhost.example:4200/api", False),
        ("http://[/api", False),
        ("http://127.0.0.1/api", False),
        ("", False),
    ],
)
def test_a_command_sends_it_to_a_ui_that_runs_alone(address: str, found: bool, home: Path) -> None:
    whole = ui_password()
    holds = "from flows.guard.password import password_serves\nwith password_serves(4200): print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holds], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        running.stdout.readline()
        assert client_variables({"PREFECT_API_URL": address}) == ({CLIENT: whole} if found else {})
        assert client_variables({"PREFECT_API_URL": address, CLIENT: "me:mine"}) == {}
        running.kill()
    assert client_variables({"PREFECT_API_URL": address}) == {}, "somebody else may listen there now"


def test_a_lock_that_others_could_hold_says_nothing(home: Path) -> None:
    whole, address = ui_password(), {"PREFECT_API_URL": "http://127.0.0.1:4200/api"}
    with password_serves(4200):
        assert client_variables(address) == {CLIENT: whole}
        password_file().parent.chmod(0o755)
        assert client_variables(address) == {}
    ui_password()
    assert password_file().parent.stat().st_mode & 0o777 == 0o700
