"""Calls of tools in an answer's text: the same for any cut of it into parts, and nothing is lost."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.serve.tools import CLOSE, OPEN, ToolText

CALL = {"name": "weather", "arguments": {"place": "Zürich", "days": [1, 2]}}
WRITTEN = f"{OPEN}{json.dumps(CALL)}{CLOSE}"
PIECES = st.sampled_from(
    [OPEN, CLOSE, WRITTEN, json.dumps(CALL), "<tool", "_call>", "<", "/", "Well, ", "\n", "{", "é"]
)


def read(*parts: str) -> tuple[str, list[dict[str, Any]]]:
    """The text and the calls without their ids."""
    tools = ToolText()
    text = "".join(tools.feed(part) for part in parts) + tools.finish()
    return text, [dict(call["function"]) for call in tools.calls]


@given(st.lists(PIECES, max_size=8).map("".join), st.data())
def test_any_cut_gives_the_same_text_and_calls(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(*parts) == read(text)
    said, calls = read(text)
    assert len(said) + len(calls) * len(OPEN) <= len(text)
    if not calls:
        assert said == text, "nothing is lost"


def test_calls_are_taken_out_of_the_text_in_their_order() -> None:
    other = f"{OPEN}\n{json.dumps({'name': 'clock'})}\n{CLOSE}"
    text, calls = read(f"Let me see. {WRITTEN}{other} Done.")
    assert text == "Let me see.  Done."
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [
        ("weather", CALL["arguments"]),
        ("clock", {}),
    ]


def test_text_is_released_as_soon_as_it_cannot_be_a_call() -> None:
    tools = ToolText()
    assert [tools.feed(part) for part in ("a <", "b", "<tool_cal", "x", "<tool_call>", "{}")] == [
        "a ",
        "<b",
        "",
        "<tool_calx",
        "",
        "",
    ]
    assert tools.finish() == "<tool_call>{}"


def test_a_call_whose_closing_tag_ended_the_answer_counts() -> None:
    assert read(OPEN, json.dumps(CALL))[1] == read(WRITTEN)[1]


@pytest.mark.parametrize(
    "inside",
    [
        "{",
        "[]",
        '"text"',
        "{}",
        '{"name": 1}',
        '{"name": "f", "arguments": "x"}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": "\\ud800"}}',
        '{"name": "\\udfff"}',
        '{"name": "f", "arguments": {"a": ' + "[" * 300 + "]" * 300 + "}}",
        '{"name": "f", "arguments": {"a": ' + "[" * 5000 + "]" * 5000 + "}}",
    ],
)
def test_what_is_not_a_call_stays_text(inside: str) -> None:
    text = f"{OPEN}{inside}{CLOSE}"
    assert read(text) == (text, [])


def test_what_a_call_holds_can_be_sent() -> None:
    tools = ToolText()
    tools.feed(WRITTEN)
    assert orjson.loads(orjson.dumps(tools.calls))[0]["type"] == "function"
    assert len({tools.calls[0]["id"], *(call["id"] for call in _read_again().calls)}) == 2


def _read_again() -> ToolText:
    tools = ToolText()
    tools.feed(WRITTEN)
    return tools
