"""Converts a row of any form to the one that is trained on, and checks it before anything trains on it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tasks.download.pairs.choose import INSTRUCTIONS, PREFERENCES, choose
from tasks.download.pairs.form import FormName, Message, Values, bad
from tasks.download.pairs.labelled import LABELLED


class Converted(NamedTuple):
    """A pair as it is written, and one word for what was cut from it, "" for nothing."""

    pair: dict[str, Any]
    cut: str = ""


def instruction(row: Values, source: str, form: FormName | None = None) -> Converted:
    """A conversation that ends with the assistant's turn. Raises BadDocument.

    A last turn of the user's is cut, as nothing in it is learned.
    """
    turns = choose(INSTRUCTIONS, row, form).take(row)
    _check_order(turns)
    kept = turns[:-1] if turns[-1]["role"] == "user" else turns
    _check_ends_with_answer(kept, "the conversation")
    pair = {"id": _identity(kept), "source": source, "messages": kept}
    return Converted(pair, "trailing_user_turn" if len(kept) < len(turns) else "")


def preference(row: Values, source: str, form: FormName | None = None) -> Converted:
    """A prompt that ends with the user's turn, with two answers that end with the assistant's. Raises BadDocument."""
    prompt, chosen, rejected = choose(PREFERENCES, row, form).take(row)
    for key, answer in (("chosen", chosen), ("rejected", rejected)):
        _check_answer(prompt, answer, key)
    if chosen == rejected:
        raise bad("equal_answers", "chosen and rejected are equal")
    identity = _identity([*prompt, *chosen, *rejected])
    return Converted({"id": identity, "source": source, "prompt": prompt, "chosen": chosen, "rejected": rejected})


def labelled(row: Values, source: str, form: FormName | None = None) -> Converted:
    """A prompt that ends with the user's turn, with an answer that ends with the assistant's. Raises BadDocument."""
    prompt, completion, label = choose(LABELLED, row, form).take(row)
    _check_answer(prompt, completion, "the answer")
    identity = _identity([*prompt, *completion, {"label": str(label)}])
    return Converted({"id": identity, "source": source, "prompt": prompt, "completion": completion, "label": label})


def _check_answer(prompt: list[Message], answer: list[Message], key: str) -> None:
    _check_ends_with_answer(answer, key)
    _check_order([*prompt, *answer])
    if answer[0]["role"] != "assistant":
        raise bad("no_answer", f"{key} doesn't begin with the assistant's turn")


def _identity(messages: list[Message]) -> str:
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()[:32]


def _check_order(turns: Sequence[Message]) -> None:
    """Raises BadDocument unless the turns are an optional system prompt, then the user and the assistant in turn."""
    start = 1 if turns and turns[0]["role"] == "system" else 0
    roles = [turn["role"] for turn in turns[start:]]
    if "system" in roles:
        raise bad(
            "late_system", f"turn {start + roles.index('system') + 1} is a system prompt, which can only come first"
        )
    if not roles or roles[0] != "user":
        raise bad("no_question", "the first turn is not the user's")
    for number, (role, following) in enumerate(pairwise(roles), start + 1):
        if role == following:
            raise bad("two_in_a_row", f"turns {number} and {number + 1} are both the {role}'s")


def _check_ends_with_answer(turns: Sequence[Message], key: str) -> None:
    """Raises BadDocument unless the last turn is the assistant's."""
    if not turns or turns[-1]["role"] != "assistant":
        raise bad("no_answer", f"{key} doesn't end with the assistant's turn")
