"""Streams of events, by whatever pieces they arrive, and every way in which a server fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tasks.serve.engines import client as module
from tasks.serve.engines.client import ask_json, events, open_client
from tasks.serve.engines.protocol import EngineFault, EngineRefusal
from tests.tasks.serve.engines.servers import saying, streamed


def received(*parts: bytes, pause: float = 0.0) -> list[dict[str, Any]]:
    """The events of a response of these bytes."""

    async def main() -> list[dict[str, Any]]:
        async with saying(*parts, pause=pause) as (url, requests):
            async with open_client(url) as client:
                found = [event async for event in events(client, "/completions", {"prompt": "é"})]
            assert requests[0].startswith(b"POST /v1/completions HTTP/1.1\r\n")
            assert b"Content-Length: 15" in requests[0]
            return found

    return asyncio.run(main())


LINES = [f'data: {{"text": "{word}"}}\n\n' for word in ("a", "é👩‍👩‍👧", "data: [DONE]")]
EVENTS = [json.loads(line[6:]) for line in LINES]


def test_events_arrive_whole_however_they_are_cut() -> None:
    whole = b"".join(
        streamed(": a comment\n", "event: x\r\nid: 1\n", *LINES, "data: [DONE]\n\n", 'data: {"late": 1}\n\n')
    )
    assert received(whole) == EVENTS
    assert received(*(whole[place : place + 1] for place in range(len(whole)))) == EVENTS
    cut = "".join(LINES)
    assert received(*streamed(*(cut[place : place + 7] for place in range(0, len(cut), 7)))) == EVENTS
    assert received(*streamed(*(line.replace("\n", "\r\n") for line in LINES))) == EVENTS
    body = "".join(LINES).encode()
    assert received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body) == EVENTS
    assert received(b"HTTP/1.0 200 OK\r\n\r\n", body) == EVENTS, "as long as the connection"


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (streamed(LINES[0])[:-1], "doesn't answer .*before its last chunk"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n", LINES[0].encode()], "69 bytes early"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"-5\r\nabc"], "size of a chunk"),
        ([b"\x16\x03\x01\r\n\r\n"], "not a response"),
        ([b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000], "headers are too long"),
        ([], "closed before an answer"),
        (streamed("data: {oops\n\n"), "something else than JSON"),
        (streamed("data: [1]\n\n"), "something else than a JSON object"),
        (streamed('data: {"error": {"message": "out of memory", "code": 500}}\n\n'), "status 500: out of memory"),
        (streamed('data: {"error": "gone"}\n\n'), "status 500: gone"),
        (streamed('{"error": {"message": "loading"}}', head="503 Busy"), "status 503: loading"),
        (streamed('{"error": {"message": "who?"}}', head="401 No"), "status 401: who"),
        (streamed("<html>", head="502 Bad Gateway"), "status 502: <html>"),
    ],
)
def test_a_failure_is_a_fault(parts: Sequence[bytes], words: str) -> None:
    with pytest.raises(EngineFault, match=words):
        received(*parts)


@pytest.mark.parametrize(
    "parts",
    [
        streamed('{"error": {"message": "no such \\u001b[2Jgrammar", "code": 400}}', head="400 Bad Request"),
        streamed(LINES[0], 'data: {"error": {"message": "no such \\u001b[2Jgrammar", "code": 400}}\n\n'),
        streamed('{"message": "no such \\u001b[2Jgrammar", "error": "no such \\u001b[2Jgrammar"}', head="422 No"),
    ],
)
def test_a_refusal_is_the_servers_sentence_without_control_characters(parts: Sequence[bytes]) -> None:
    with pytest.raises(EngineRefusal, match=r"no such \S\[2Jgrammar"):
        received(*parts)


def test_an_endless_event_and_a_silent_server_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_EVENT", 1000)
    with pytest.raises(EngineFault, match="more than 1,000 bytes"):
        received(*streamed("data: ", *["a" * 400] * 4))
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.2)
    with pytest.raises(EngineFault, match="no answer in time"):
        received(*streamed(*LINES), pause=2)


def test_a_slow_reader_is_not_a_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.2)

    async def main() -> list[dict[str, Any]]:
        found = []
        async with saying(*streamed(*LINES)) as (url, _), open_client(url) as client:
            async for event in events(client, "/x", {}):
                found.append(event)
                await asyncio.sleep(0.5)
        return found

    assert asyncio.run(main()) == EVENTS


def test_nobody_there_is_a_fault() -> None:
    async def main() -> None:
        async with saying() as (url, _):
            pass
        with pytest.raises(EngineFault, match="ConnectError"):
            await ask_json(open_client(url), "GET", "/models")

    asyncio.run(main())
