"""Conversations written as one text, whose turns begin with "Human:" and "Assistant:" after an empty line: HH-RLHF."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tasks.download.pairs.form import Message, bad
from tasks.download.pairs.texts import assistant, text_of, user
from tasks.download.pairs.turns import read_turns

SPEAKER = re.compile(r"(?:\A|\n\n)(Human|Assistant):")
OPENING = re.compile(r"\s*Human:")
ENDING = re.compile(r"\n\nAssistant:\s*\Z")


def as_turns(value: Any, key: str, says: Callable[[str], Message]) -> list[Message]:
    """The turns of a list, a message or a text. A text is the turn that `says` makes of it, unless it is a transcript
    that leaves the next turn to the assistant."""
    if not isinstance(value, str):
        return read_turns([value] if isinstance(value, dict) else value, key)
    text = text_of(value, key)
    if OPENING.match(text) and (ending := ENDING.search(text)):
        return transcript(text[: ending.start()], key)
    return [says(text)]


def without_prompt(prompt: list[Message], answer: list[Message], key: str) -> list[Message]:
    """An answer without the prompt, if it is the whole conversation and begins with that. Raises BadDocument."""
    if answer[: len(prompt)] != prompt:
        return answer
    if len(answer) == len(prompt):
        raise bad("no_answer", f"{key} is the prompt and nothing else")
    return answer[len(prompt) :]


def transcript(text: str, key: str) -> list[Message]:
    """The turns of a transcript, without the white space around them. Raises BadDocument."""
    before, *parts = SPEAKER.split(text)
    if before.strip() or not parts:
        raise bad("no_transcript", f'{key} doesn\'t begin with "Human:" or "Assistant:"')
    speakers = {"Human": user, "Assistant": assistant}
    said = zip(parts[::2], parts[1::2], strict=True)
    return [
        speakers[who](text_of(words.strip(), f"turn {number} of {key}")) for number, (who, words) in enumerate(said, 1)
    ]
