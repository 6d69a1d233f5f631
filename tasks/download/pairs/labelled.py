"""Forms with one answer and a label: TRL's for KTO, and LLaMA-Factory's with `kto_tag`."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tasks.download.pairs.form import Form, Labelled, LabelledForm, Message, Values, bad
from tasks.download.pairs.question import ALPACA
from tasks.download.pairs.texts import assistant, kind_of, system_of, user
from tasks.download.pairs.transcript import as_turns, without_prompt
from tasks.download.pairs.turns import MESSAGES, SHAREGPT

LABELS = ("label", "kto_tag")


def is_label(value: object) -> bool:
    """Whether a value labels an answer as desirable or not: true or false, or 1 or 0."""
    return isinstance(value, int) and value in (0, 1)


def _label(row: Values) -> bool:
    given = {key: row[key] for key in LABELS if row.get(key) is not None}
    for key, value in given.items():
        if not is_label(value):
            raise bad("no_label", f"{key} is {kind_of(value)}, neither true nor false")
    if len(set(given.values())) != 1:
        raise bad("no_label", "label and kto_tag are null or disagree")
    return bool(next(iter(given.values())))


def _completion(row: Values) -> Labelled:
    prompt = [*system_of(row), *as_turns(row["prompt"], "prompt", user)]
    completion = without_prompt(prompt, as_turns(row["completion"], "completion", assistant), "completion")
    return Labelled(prompt, completion, _label(row))


def _last_turn(row: Values, take: Callable[[Values], list[Message]]) -> Labelled:
    turns = take(row)
    return Labelled(turns[:-1], turns[-1:], _label(row))


def _form(name: LabelledForm, keys: tuple[str, ...], take: Callable[[Values], Labelled]) -> Form[Labelled]:
    return Form(name, tuple((*keys, label) for label in LABELS), take)


LABELLED = (
    _form("labelled_completion", ("prompt", "completion"), _completion),
    _form("labelled_messages", ("messages",), functools.partial(_last_turn, take=MESSAGES.take)),
    _form("labelled_sharegpt", ("conversations",), functools.partial(_last_turn, take=SHAREGPT.take)),
    _form("labelled_alpaca", ("instruction", "output"), functools.partial(_last_turn, take=ALPACA.take)),
)
