"""The ends of a promotion. Copies are tested where `release push` is, and whole promotions, one of them into a
real server, among the drills."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from flows.deployed.destinations import destination
from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact, GristmillError, ServerError
from tasks.export.push.outgoing import Outgoing

UNREAD = cast(Outgoing, None)  # only copies need the files
Answer = Mapping[str, Any]


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Makes a socket that answers a command with these lines, and gives its state folder."""
    from tasks.serve.control import SOCKET

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / SOCKET))
    listening.listen()

    def answer(*lines: Answer) -> Path:
        def once() -> None:
            connected, _ = listening.accept()
            with connected, connected.makefile("rb") as asked:
                (tmp_path / "asked").write_bytes(asked.readline())
                connected.sendall(b"".join(json.dumps(line).encode() + b"\n" for line in lines))

        threading.Thread(target=once, daemon=True).start()
        return tmp_path

    yield answer
    listening.close()


@pytest.mark.parametrize(
    ("lines", "kind", "words"),
    [
        ([{"step": "Checking"}, {"error": "The engine ended.", "remedy": "See its log."}], ServerError, "engine ended"),
        ([{"step": "Checking"}], ServerError, "ended before it had answered"),
        ([{"done": {"model": "tiny", "digest": "0" * 64}}], DamagedArtifact, "serves another release"),
    ],
    ids=["an error", "the end of the server", "another release"],
)
def test_a_swap_that_fails_fails_the_promotion(
    control: Callable[..., Path], lines: list[Answer], kind: type[GristmillError], words: str
) -> None:
    state = control(*lines)
    approved = cast(Artifact, type("Approved", (), {"location": "export/0123", "digest": "1" * 64}))
    with pytest.raises(kind, match=words):
        destination(f"serve:{state}#tiny", False).take(approved, UNREAD, print)
    asked = json.loads((state / "asked").read_bytes())
    assert asked == {"command": "swap", "release": "export/0123", "model": "tiny"}


def test_nobody_is_asked_about_a_server_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="No server uses the state folder"):
        destination(f"serve:{tmp_path}", False).check(UNREAD)
    (tmp_path / "file").touch()
    with pytest.raises(ServerError, match="No server uses the state folder"):
        destination(f"SERVE:{tmp_path / 'file'}", False).check(UNREAD)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_of_another_user_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    ours = os.geteuid()
    os.seteuid(65534)
    try:
        with pytest.raises(ServerError, match="another user's"):
            destination(f"serve:{tmp_path / 'state'}", False).check(UNREAD)
    finally:
        os.seteuid(ours)


@pytest.mark.parametrize("to", ["serve:", "serve:#tiny"])
def test_an_address_without_a_folder_is_refused(to: str) -> None:
    with pytest.raises(ConfigError, match="lacks the folder"):
        destination(to, False)
