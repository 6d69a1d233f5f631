"""`gristmill chat` at a terminal: an answer as it arrives, Ctrl-C, and the /commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.download.pairs import instruction
from tests.flows.commands.chat.conftest import SHOWN
from tests.flows.commands.chat.terminal import CTRL_C, CTRL_D, UP, Terminal


def test_ctrl_c_stops_the_answer_and_twice_ends_the_chat(store: str) -> None:
    with Terminal("chat", "tiny@2", f"--store={store}", "--max-tokens=2000") as chat:
        chat.expect("tiny/export@2, gguf-f32, 2,048 tokens of context. /help lists the commands.")
        chat.line("Where does the fox live?")
        chat.expect("It lives in the wood, they say")
        chat.press(CTRL_C)
        assert chat.expect("Stopped.").count("they say") < 200, "it was stopped before its limit"
        chat.interrupt()
        chat.expect("Ctrl-C again ends the chat.")
        chat.line("/tokens 9")
        chat.line("And the hen?")
        chat.expect("It lives in the wood, they say")
        chat.expect("Cut after 9 tokens. /tokens sets another limit.")
        chat.interrupt()
        chat.expect("Ctrl-C again ends the chat.")
        chat.interrupt()
        assert chat.end() == 0


def test_an_answer_cannot_steer_the_terminal(store: str) -> None:
    with Terminal("chat", "tiny@1", f"--store={store}") as chat:
        chat.line("Where?")
        chat.expect(f"\r\n{SHOWN}\r\n")
        chat.expect("> ")
        chat.press(CTRL_D)
        assert chat.end() == 0
    assert "\x1b[2J" not in chat.said


def test_commands_change_the_conversation(store: str, tmp_path: Path) -> None:
    with Terminal("chat", "tiny@2", f"--store={store}", "--max-tokens=9", cwd=tmp_path) as chat:
        for typed, told in (
            ("/retry", "Nothing to answer again."),
            ("/undo", "Nothing to remove."),
            ("/stats", "No answer yet."),
            ("/save mine.jsonl", "Nothing to save."),
            ("/load mine.jsonl", "mine.jsonl is not a file of conversations: No such file or directory."),
            ("/temperature hot", "The temperature is hot. Give a number from 0 to 10."),
            ("/tokens 0", "The number of tokens is 0. Give a whole number from 1."),
            ("/nothing", "The command /nothing is unknown. /help lists them."),
            ("/help", "/save FILE"),
            ("/system You know the animals.", "System prompt set."),
            ("/temperature 0.5", "Temperature 0.5."),
            ("", ""),
            ("Where?", "they say"),
            ("//help", "they say"),
            ("/retry", "they say"),
            ("/stats", "answer 9 tokens, first token after"),
            ("/save mine.jsonl", "Row 1 of mine.jsonl."),
            ("/undo", "Removed: /help"),
            ("/save mine.jsonl", "Row 2 of mine.jsonl."),
            ("/clear", "Cleared."),
            ("/system", "System prompt removed."),
            ("/undo", "Nothing to remove."),
            ("/load mine.jsonl", "1 turns, with a system prompt."),
            (f"{UP}{UP}", "Removed: Where?"),
        ):
            chat.line(typed)
            chat.expect(told)
        chat.line("/quit")
        assert chat.end() == 0
    rows = [json.loads(line) for line in (tmp_path / "mine.jsonl").read_text().splitlines()]
    assert [[message["content"] for message in row["messages"][:2]] for row in rows] == [
        ["You know the animals.", "Where?"]
    ] * 2
    assert [len(instruction(row, "chat").pair["messages"]) for row in rows] == [5, 3]


@pytest.mark.soak
def test_a_full_context_is_named_and_nothing_is_dropped_without_a_yes(store: str) -> None:
    with Terminal("chat", "tiny@1", f"--store={store}") as chat:
        for _ in range(3):
            chat.line("Where does the fox live, and the hen, and the owl?")
            chat.expect(SHOWN)
        chat.line("Where does the fox live, and the hen, and the owl?")
        chat.expect("tokens, and the context is 128.")
        chat.expect("Drop the oldest turns until it fits? [y/N] ")
        chat.press("\r")
        chat.expect("Nothing was dropped")
        chat.line("Where does the fox live, and the hen, and the owl?")
        chat.expect("Drop the oldest turns until it fits? [y/N] ")
        chat.press("y\r")
        chat.expect("1 of 3 earlier turns dropped, the oldest first")
        chat.line("/clear")
        chat.line("fox " * 200)
        assert "Drop" not in chat.expect("and the context is 128. Shorten the message")
        chat.line("/quit")
        assert chat.end() == 0
