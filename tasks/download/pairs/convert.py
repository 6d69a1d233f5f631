"""A row of any form as the one form that is trained on, checked before anything trains on it."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from tasks.download.pairs.choose import INSTRUCTIONS, PREFERENCES, choose
from tasks.download.pairs.form import FormName, Message, Values, bad
from tasks.download.pairs.labelled import LABELLED
from tasks.download.pairs.order import check_order, ends_with_answer


class Converted(NamedTuple):
    """A pair as it is written, and what was taken from it, in one word: "" for nothing."""

    pair: dict[str, Any]
    cut: str = ""


def instruction(row: Values, source: str, form: FormName | None = None) -> Converted:
    """A conversation that ends with the assistant's turn. Raises BadDocument.

    A last turn of the user's is cut: nothing of it bears loss.
    """
    turns = choose(INSTRUCTIONS, row, form).take(row)
    check_order(turns)
    kept = turns[:-1] if turns[-1]["role"] == "user" else turns
    ends_with_answer(kept, "the conversation")
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
    ends_with_answer(answer, key)
    check_order([*prompt, *answer])
    if answer[0]["role"] != "assistant":
        raise bad("no_answer", f"{key} does not begin with the assistant's turn")


def _identity(messages: list[Message]) -> str:
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()[:32]
