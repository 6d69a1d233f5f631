"""Under load: releases are swapped, engines and servers are killed, clients leave or don't read, and nobody loses an
answer that could be given."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from storage.errors import ServerError
from tasks.serve.control import command
from tests.ended import have_ended
from tests.tasks.serve.hostile.load import ASKED, END, Load, is_whole
from tests.tasks.serve.hostile.raw import CHAT, connect, head, is_unharmed, memory, posted, refused, statuses
from tests.tasks.serve.real_server import Server, make_release, serving

CONTEXT = 2048
ENDLESS = {"max_tokens": CONTEXT, "temperature": 0}  # the likeliest token is the same one for ever
SETTINGS = {
    "engine": {"slots": 4, "threads": 1, "context": CONTEXT},
    "requests": {"queue": 8, "write_seconds": 3, "total_seconds": 30},
    "swap_seconds": 0.5,
    "drain_seconds": 30,
}


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two releases, whose answers take seconds."""
    folder = tmp_path_factory.mktemp("releases")
    shape: dict[str, Any] = {"depth": 6, "width": 256, "heads": 4, "context": CONTEXT}
    return make_release(folder / "one", **shape), make_release(folder / "two", **{**shape, "depth": 5})


@pytest.fixture(scope="module")
def busy(releases: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the first."""
    with serving(releases[0], tmp_path_factory.mktemp("busy"), SETTINGS) as running:
        yield running
        is_unharmed(running, [], [])


def started(server: Server, **fields: Any) -> socket.socket:
    """A connection whose stream has begun."""
    data = json.dumps({**ASKED, **ENDLESS, "stream": True, **fields}).encode()
    length = f"Content-Length: {len(data)}"
    connection = connect(server, 30)
    connection.sendall(head(server, f"POST {CHAT}", "Content-Type: application/json", length) + data)
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def rest(connection: socket.socket) -> bytes:
    """What comes until the end."""
    received = bytearray()
    while data := connection.recv(1 << 16):
        received += data
    return bytes(received)


def within(seconds: float, holds: Callable[[], bool]) -> float:
    """The seconds until something holds."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, f"not within {seconds:g} s"
        time.sleep(0.02)
    return time.monotonic() - began


def is_ready(server: Server) -> bool:
    return httpx.get(f"{server.url}/ready").status_code == 200


def socket_of(server: Server) -> Path:
    """The socket of the engine."""
    (path,) = re.findall(r'"socket": "([^"]+)"', Path(f"/proc/{server.engines()[0]}/cmdline").read_text())
    return Path(path)


def working(server: Server) -> int:
    """The requests that the engine works on, by its own count."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket_of(server)))) as client:
        page = client.get("http://engine/metrics").text
    return sum(map(int, re.findall(r"^llamacpp:requests_(?:processing|deferred) (\d+)", page, re.M)))


def swapped(server: Server, release: Path) -> str:
    """The digest of what is served after a swap."""
    *_, last = command(server.state, command="swap", release=str(release))
    digest: str = last["done"]["digest"]
    return digest


def served_digest(server: Server) -> str:
    body = json.loads(posted(server, CHAT, {**ASKED, "max_tokens": 1}).partition(b"\r\n\r\n")[2])
    fingerprint: str = body["system_fingerprint"]
    return fingerprint


def test_swaps_under_load_lose_nothing(busy: Server, releases: tuple[Path, Path], tmp_path: Path) -> None:
    damaged = shutil.copytree(releases[1], tmp_path / "damaged")
    with (damaged / "gguf" / "model-f16.gguf").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\0" if file.read(1) else b"\1")
    before = served_digest(busy)
    with Load(busy) as load:
        after = swapped(busy, releases[1])
        assert served_digest(busy) == after != before
        for where in (damaged, tmp_path / "nowhere"):
            with pytest.raises(ServerError):
                swapped(busy, where)
            assert served_digest(busy) == after
        with ThreadPoolExecutor(2) as pool:
            assert set(pool.map(lambda one: swapped(busy, one), releases)) == {before, after}
        assert served_digest(busy) in (before, after)
    assert len(load.answers) > 20
    assert load.wrong == []
    within(20, lambda: len(busy.engines()) == 1)


def test_a_killed_engine_is_told_of_and_comes_back(busy: Server) -> None:
    streams = [started(busy) for _ in range(3)]
    killed = busy.engines()[0]
    os.kill(killed, signal.SIGKILL)
    assert within(2, lambda: not is_ready(busy)) < 2
    if statuses(answer := posted(busy, CHAT, ASKED)) != [200]:  # it may be back already
        assert statuses(answer) == [503]
        assert refused(answer)
    for connection in streams:
        answer = rest(connection)
        assert b'data: {"error":{"message":"The engine failed. Try again soon."' in answer
        assert END in answer
        assert answer.endswith(b"0\r\n\r\n"), "an end in order"
    within(20, lambda: is_ready(busy))
    assert busy.engines() != [killed]
    assert is_whole(posted(busy, CHAT, {**ASKED, "max_tokens": 9, "stream": True}))


def test_the_engine_stops_within_a_second_of_a_client_leaving(busy: Server) -> None:
    for fields in ({}, {"n": 3}):
        streams = [started(busy, **fields) for _ in range(2)]
        within(2, lambda: working(busy) >= 2)
        for connection in streams:
            connection.close()
        within(1, lambda: working(busy) == 0)
    data = json.dumps({**ASKED, **ENDLESS}).encode()
    with connect(busy) as connection:
        length = f"Content-Length: {len(data)}"
        connection.sendall(head(busy, f"POST {CHAT}", "Content-Type: application/json", length) + data)
        within(2, lambda: working(busy) == 1)
    within(1, lambda: working(busy) == 0)


@pytest.mark.soak
def test_clients_that_do_not_read_cost_only_themselves(busy: Server) -> None:
    """They get no slot for longer than others, and are cut off."""

    def short() -> float:
        began = time.monotonic()
        assert statuses(posted(busy, CHAT, {**ASKED, "max_tokens": 4})) == [200]
        return time.monotonic() - began

    alone = max(short() for _ in range(5))
    before = memory(busy.process.pid)
    stuck = [started(busy, n=8, logprobs=True, top_logprobs=20) for _ in range(4)]
    within(25, lambda: busy.metric("vllm:num_requests_running") == 0)
    assert max(short() for _ in range(10)) < alone + 1
    assert memory(busy.process.pid) - before < 100e6
    time.sleep(4)
    for connection in stuck:
        answer = rest(connection)
        assert len(answer) > 100_000
        assert END not in answer


@pytest.mark.soak
def test_the_queue_is_bounded_and_fair_between_keys(busy: Server, releases: tuple[Path, Path]) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "flows.cli", "serve", "keys", "make", "greedy", "--state", str(busy.state)],
        capture_output=True,
        text=True,
        check=True,
    )
    (key,) = re.findall(r"gsk-\w{8}-\w{43}", made.stdout)
    answers: list[bytes] = []

    def flood() -> None:
        body = {**ASKED, "max_tokens": 700, "stream": True}
        answers.append(posted(busy, CHAT, body, f"Authorization: Bearer {key}", seconds=60))

    threads = [threading.Thread(target=flood) for _ in range(20)]
    for thread in threads:
        thread.start()
    within(5, lambda: busy.metric("vllm:num_requests_waiting") >= 7)
    while statuses(answer := posted(busy, CHAT, {**ASKED, "max_tokens": 4})) == [429]:
        assert refused(answer)
        time.sleep(0.05)
    done = len([one for one in answers if is_whole(one)])
    for thread in threads:
        thread.join()
    refusals = [one for one in answers if statuses(one) == [429]]
    assert len(refusals) + len([one for one in answers if is_whole(one)]) == 20
    assert refusals
    assert all("queue" in refused(one) for one in refusals)
    assert done <= 9, "another key waits for one turn, not for the whole queue"


def test_sigterm_answers_what_was_accepted(releases: tuple[Path, Path], tmp_path: Path) -> None:
    with serving(releases[0], tmp_path, {**SETTINGS, "requests": {"queue": 64}}) as server:
        engine, folder = server.engines()[0], socket_of(server).parent
        assert folder.is_dir()
        with Load(server, clients=16) as load:
            time.sleep(0.5)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
        assert len(load.answers) > 16
        assert load.wrong == []
        with pytest.raises(ProcessLookupError):
            os.kill(engine, 0)
        assert not (server.state / "control.sock").exists()
        is_unharmed_log(server)
    assert not folder.exists()


def is_unharmed_log(server: Server) -> None:
    assert [line for line in server.lines if "Traceback" in line or " at=" in line] == []


@pytest.mark.soak
def test_a_second_signal_ends_at_once(releases: tuple[Path, Path], tmp_path: Path) -> None:
    with serving(releases[0], tmp_path, SETTINGS) as server:
        engine = server.engines()[0]
        streams = [started(server, n=3) for _ in range(3)]
        server.process.send_signal(signal.SIGINT)
        time.sleep(1)
        assert server.process.poll() is None, "it answers what was accepted"
        server.process.send_signal(signal.SIGINT)
        server.process.wait(8)
        with pytest.raises(ProcessLookupError):
            os.kill(engine, 0)
        is_unharmed_log(server)
        for connection in streams:
            connection.close()


@pytest.mark.soak
def test_an_answer_takes_no_longer_than_it_may_and_a_killed_server_leaves_no_engine(
    releases: tuple[Path, Path], tmp_path: Path
) -> None:
    with serving(releases[0], tmp_path, {**SETTINGS, "requests": {"total_seconds": 1}}) as server:
        answer = posted(server, CHAT, {**ASKED, **ENDLESS, "n": 8})
        assert statuses(answer) == [504]
        assert b"The answer took longer than 1 s." in answer
        answer = rest(started(server, n=8))
        assert b"The answer took longer than 1 s." in answer
        assert END in answer
        within(1, lambda: working(server) == 0)
        posted(server, CHAT, {**ASKED, "max_tokens": 3, "grammar": 'root ::= "a"'})
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string"}}}
        posted(server, CHAT, {**ASKED, "max_tokens": 3, "response_format": wanted})
        engines = server.engines()
        assert len(engines) == 2
        stream = started(server)
        server.process.kill()
        server.process.wait()
        assert have_ended(engines, seconds=3)
        stream.close()
