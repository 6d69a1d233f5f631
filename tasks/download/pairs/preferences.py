"""Forms with a chosen and a rejected answer. Scores, ranks and all other keys of a row are left out."""

from __future__ import annotations

from typing import Any

from tasks.download.pairs.form import Answers, Form, Message, Values, bad
from tasks.download.pairs.question import asked, before
from tasks.download.pairs.texts import assistant, system_of, text_of, user
from tasks.download.pairs.transcript import as_turns, transcript, without_prompt
from tasks.download.pairs.turns import chat, read_turns


def _answers(prompt: list[Message], row: Values) -> Answers:
    """The answers to a prompt. From an answer that is the whole conversation, the prompt is removed."""
    given = {key: as_turns(row[key], key, assistant) for key in ("chosen", "rejected")}
    chosen, rejected = (without_prompt(prompt, answer, key) for key, answer in given.items())
    return Answers(prompt, chosen, rejected)


def _explicit_prompt(row: Values) -> Answers:
    prompt = [*system_of(row), *as_turns(row["prompt"], "prompt", user)]
    answers = _answers(prompt, row)
    if any(answer[0]["role"] == "assistant" for answer in answers[1:]):
        return answers
    whole = _split(answers.chosen, answers.rejected)  # conversations that begin differently, perhaps with a system turn
    if not all(_said(turn) in [_said(other) for other in whole.prompt] for turn in prompt):
        raise bad("other_prompt", "chosen and rejected answer another prompt than prompt")
    return whole


def _said(turn: Message) -> tuple[str, str]:
    return turn["role"], turn["content"].strip()


def _implicit_prompt(row: Values) -> Answers:
    chosen, rejected = (_conversation(row[key], key) for key in ("chosen", "rejected"))
    answers = _split(chosen, rejected)
    return answers._replace(prompt=[*system_of(row), *answers.prompt])


def _conversation(value: Any, key: str) -> list[Message]:
    return transcript(text_of(value, key), key) if isinstance(value, str) else read_turns(value, key)


def _split(chosen: list[Message], rejected: list[Message]) -> Answers:
    """The turns that two conversations have in common, and what follows in each."""
    if chosen == rejected:
        raise bad("equal_answers", "chosen and rejected are equal")
    shared = 0
    while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
        shared += 1
    if not shared:
        raise bad("other_prompt", "chosen and rejected begin differently")
    return Answers(chosen[:shared], chosen[shared:], rejected[shared:])


def _alpaca_preference(row: Values) -> Answers:
    return _answers([*before(row), user(asked(row, "instruction", "input"))], row)


def _sharegpt_preference(row: Values) -> Answers:
    return _answers(chat(row, "conversations"), row)


EXPLICIT_PROMPT = Form("explicit_prompt", (("prompt", "chosen", "rejected"),), _explicit_prompt)
IMPLICIT_PROMPT = Form(
    "implicit_prompt", (("chosen", "rejected"),), _implicit_prompt, without=("prompt", "instruction", "conversations")
)
ALPACA_PREFERENCE = Form("alpaca_preference", (("instruction", "chosen", "rejected"),), _alpaca_preference)
SHAREGPT_PREFERENCE = Form("sharegpt_preference", (("conversations", "chosen", "rejected"),), _sharegpt_preference)
