"""Hostile text: bounded text is held back, and the time is linear in the text."""

from __future__ import annotations

import random
import string
import time

import pytest

from tests.tasks.serve.guards.ready import guards

SIGNS = string.ascii_letters + string.digits + "+/"
LONG = 20_000
HOSTILE = {
    "letters": "a",
    "digits": "0",
    "dots": "a.",
    "addresses": "a.a.a.a@",
    "blanks": " ",
    "numbers": "1 ",
    "colons": "aa:",
    "marks": "\u0301",
    "nul": "\0",
    "invisible": "\u200b",
    "halves": "\udc00\ud800",
    "at": "a at ",
    "spelled": "a [at] ",
    "dot": "a dot ",
    "either": "(+353 or ",
    "keys": "api_key=a1",
    "logins": "-u a:",
    "dashes": "-",
    "headers": "-----BEGIN PRIVATE KEY-----",
    "phrases": "jungle ",
    "flags": "\U0001f3f4\u200d",
    "token": "eyJ0",
}


@pytest.mark.parametrize("name", [*HOSTILE, "base64"])
def test_text_without_end_is_not_held_back_without_end(name: str) -> None:
    text = (HOSTILE.get(name, "") * LONG)[:LONG] or "".join(random.Random(1).choices(SIGNS, k=LONG))
    guard = guards().output()
    sent = most = 0
    for start in range(0, LONG, 50):
        sent += len(guard.feed(text[start : start + 50]))
        most = max(most, start + 50 - sent)
    sent += len(guard.finish())
    if name in ("token", "keys"):
        assert sent < 100  # dropped as what it may be
    elif name == "halves":
        assert sent == LONG // 2 + 1  # joined to characters, but the first and the last
    else:
        assert sent == LONG
        assert most <= 820  # CUT, a step and a chunk


@pytest.mark.parametrize("name", ["letters", "digits", "addresses", "marks", "either", "keys", "headers"])
def test_time_is_linear(name: str) -> None:
    def seconds(size: int) -> float:
        guard = guards().output()
        begin = time.process_time()
        for start in range(0, size, 4):
            guard.feed(text[start : start + 4])
        guard.finish()
        return time.process_time() - begin

    text = HOSTILE[name] * LONG
    seconds(4_000)
    assert min(seconds(40_000) for _ in range(2)) < 16 * min(seconds(5_000) for _ in range(2))


@pytest.mark.parametrize("name", ["letters", "addresses", "marks", "nul", "headers"])
def test_a_request_of_megabytes_is_refused_by_its_size_or_checked_in_seconds(name: str) -> None:
    text = HOSTILE[name] * (1_000_000 // len(HOSTILE[name]))
    assert guards().check_input([text]).action == "refuse"
    large = {"input": {"max_characters": 10_000_000, "max_bytes": 20_000_000}}
    begin = time.process_time()
    assert guards(large).check_input([text]).action in ("allow", "mask")
    assert time.process_time() - begin < 30


def test_an_answer_at_once_is_read_in_pieces() -> None:
    guard = guards().output()
    text = "The river flows past a town. " * 40_000
    assert guard.feed(text) + guard.finish() == text
