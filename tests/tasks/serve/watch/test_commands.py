"""`gristmill serve audit` and `gristmill serve status`, as they are typed."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from flows.commands.serve.audit import audit, moment
from flows.commands.serve.status import status
from storage.errors import ConfigError, GristmillError, ServerError, SourceError
from tests.tasks.serve.watch.report import Found, ask, watching

app = typer.Typer()
app.command()(audit)
app.command()(status)


def run(*words: str) -> str:
    """What the command prints. Raises its error."""
    done = CliRunner().invoke(app, list(words))
    if isinstance(done.exception, GristmillError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    with watching(folder) as watch:
        ask(watch, 1, findings=(Found("email"),))
        ask(watch, 2, key="bob", model="other-model")
        ask(watch, 3, key="bob", status=429, finish=None)
        ask(watch, 4, status=503, finish=None)
    with (folder / "audit" / "20260101T000000-1000.jsonl").open("w") as old:
        old.write('{"time":"2026-01-01T00:00:00.000Z","id":"r0","key":"alice","status":200}\nnot a line\n')
    return folder


def ids(state: Path, *words: str) -> list[str]:
    return [
        json.loads(line)["id"]
        for line in run("audit", "--state", str(state), "--json", *words).splitlines()
        if "{" in line
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["r0", "r1", "r2", "r3", "r4"]),
        (["--key", "bob"], ["r2", "r3"]),
        (["--status", "429"], ["r3"]),
        (["--status", "5xx"], ["r4"]),
        (["--status", "2XX", "--key", "alice"], ["r0", "r1"]),
        (["--rule", "email"], ["r1"]),
        (["--model", "other-model"], ["r2"]),
        (["--id", "r4"], ["r4"]),
        (["--since", "1h"], ["r1", "r2", "r3", "r4"]),
        (["--until", "2026-06-01"], ["r0"]),
        (["--since", "2026-01-01", "--until", "2026-01-01T00:00:00.001"], ["r0"]),
        (["--since", "2026-01-01T01:00:00+01:00", "--until", "2026-01-02"], ["r0"]),
    ],
)
def test_the_log_is_filtered(state: Path, words: list[str], expected: list[str]) -> None:
    assert ids(state, *words) == expected


def test_lines_are_for_people_and_damaged_ones_are_counted(state: Path) -> None:
    said = run("audit", "--state", str(state))
    assert "r1  alice  /v1/chat/completions  tiny  200  stop  7+5 tokens  $0.250000" in said
    assert "output:email=mask" in said
    assert "Skipped 1 damaged lines of 20260101T000000-1000.jsonl." in said


@pytest.mark.parametrize(
    ("words", "error", "match"),
    [
        (["--since", "yesterday"], ConfigError, "--since yesterday is not a time"),
        (["--until", "2026-13-01"], ConfigError, "--until 2026-13-01 is not a time"),
        (["--status", "6xx"], ConfigError, "--status 6xx is not a status"),
        (["--state", "/nowhere"], SourceError, "/nowhere doesn't hold an audit log"),
    ],
)
def test_a_wrong_option_is_named(state: Path, words: list[str], error: type[GristmillError], match: str) -> None:
    with pytest.raises(error, match=match):
        run("audit", "--state", str(state), *words)


def test_a_length_of_time_that_no_calendar_holds_is_refused() -> None:
    with pytest.raises(ConfigError):
        moment("99999999w", "--since", datetime.now(UTC))
    assert moment("2h", "--since", datetime(2026, 1, 1, 1, tzinfo=UTC)) == "2025-12-31T23:00:00.000Z"


FOLLOW = "import sys; import typer; from flows.commands.serve.audit import audit; typer.run(audit)"


def test_follow_prints_new_lines_of_every_process_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        ask(watch, 1)
        time.sleep(0.5)
        command = [sys.executable, "-c", FOLLOW, "--state", str(tmp_path), "--follow", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        while not select.select([process.stdout], [], [], 0.5)[0]:  # until the command has started
            ask(watch, 2)
        assert json.loads(process.stdout.readline())["id"] == "r2"
        with watching(tmp_path) as other:
            ask(other, 3)
        while (identity := json.loads(process.stdout.readline())["id"]) != "r3":
            assert identity == "r2"
        process.send_signal(2)
        assert process.wait(timeout=20) == 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """A server with a status. `replies` can replace it by another reply."""
    replies = list[tuple[int, str]]()
    with watching(tmp_path) as watch:
        watch.ready("tiny", True)
        watch.load("tiny", running=3, waiting=1)
        ask(watch, findings=(Found("email"),))

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, body = (200, json.dumps(watch.status())) if self.path == "/status.json" else (404, "")
                if replies:
                    code, body = replies[0]
                if code == 401 and self.headers["authorization"] == "Bearer sk-admin":
                    code = 200
                self.send_response(code)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: Any) -> None:
                pass

        listening = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}", replies
        listening.shutdown()


def test_the_status_shows_release_load_latency_costs_and_verdicts(server: tuple[str, list[tuple[int, str]]]) -> None:
    said = run("status", server[0])
    for part in ("tiny/export@3", "yes", "1 × 200", "time to first token", "end to end", "alice", "0.2500", "email"):
        assert part in said
    assert json.loads(run("status", server[0] + "/", "--json"))["models"]["tiny"]["running"] == 3


def test_a_status_is_as_large_as_the_numbers_say(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        for number in range(50):
            ask(watch, number, key=f"key{number}", cost=number / 10)
        found = watch.status()
    assert [one["key"] for one in found["keys"]] == [f"key{number}" for number in range(49, 39, -1)]
    assert found["keys"][0] == {"key": "key49", "requests": 1, "tokens": 12, "cost_usd": 4.9}
    assert found["latency"]["token"]["count"] == 200
    assert 0 < found["tokens_per_second"] <= 250
    assert json.loads(json.dumps(found)) == found


def test_a_key_is_sent_and_a_refusal_names_it(
    server: tuple[str, list[tuple[int, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, replies = server
    before = run("status", url, "--json")
    replies.append((401, before))
    with pytest.raises(ConfigError, match="needs the key of one of `watchers`"):
        run("status", url)
    with pytest.raises(ConfigError, match="SERVE_API_KEY is not set"):
        run("status", url, "--api-key-env", "SERVE_API_KEY")
    monkeypatch.setenv("SERVE_API_KEY", "sk-admin")
    assert run("status", url, "--json", "--api-key-env", "SERVE_API_KEY") == before


@pytest.mark.parametrize("reply", [(200, "<html>"), (200, "[]"), (404, ""), (500, "{}")])
def test_another_server_is_not_taken_for_ours(
    server: tuple[str, list[tuple[int, str]]], reply: tuple[int, str]
) -> None:
    server[1].append(reply)
    with pytest.raises(ServerError, match="is not a status"):
        run("status", server[0])


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "127.0.0.1:9", "http://[", "http://127.0.0.1:99999"])
def test_no_server_is_one_sentence(url: str) -> None:
    with pytest.raises(ServerError, match="No server answers"):
        run("status", url)


def test_since_is_relative_to_now() -> None:
    now = datetime.now(UTC)
    assert moment("1d", "--since", now)[:19] == (now - timedelta(days=1)).isoformat()[:19]
