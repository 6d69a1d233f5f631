"""Finds the form of a row: by its keys only, unless the profile names it.

A row with the keys of two forms is refused, as either reading could be wrong. So is a row that no method can train on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeVar

from storage.errors import BadDocument
from tasks.download.pairs.form import Answers, Form, FormName, Message, Values, bad
from tasks.download.pairs.labelled import LABELLED, is_label
from tasks.download.pairs.oasst import OASST
from tasks.download.pairs.preferences import ALPACA_PREFERENCE, EXPLICIT_PROMPT, IMPLICIT_PROMPT, SHAREGPT_PREFERENCE
from tasks.download.pairs.question import ALPACA, DOLLY, PROMPT_COMPLETION
from tasks.download.pairs.texts import refuse_media
from tasks.download.pairs.turns import MESSAGES, SHAREGPT
from tasks.download.sources.rows import columns_of

INSTRUCTIONS: tuple[Form[list[Message]], ...] = (MESSAGES, SHAREGPT, ALPACA, DOLLY, PROMPT_COMPLETION, OASST)
PREFERENCES: tuple[Form[Answers], ...] = (EXPLICIT_PROMPT, IMPLICIT_PROMPT, ALPACA_PREFERENCE, SHAREGPT_PREFERENCE)
FORMS: dict[str, tuple[Form[Any], ...]] = {
    "instructions": INSTRUCTIONS,
    "preferences": PREFERENCES,
    "labelled": LABELLED,
}
Taken = TypeVar("Taken")


class _Untrained(NamedTuple):
    keys: tuple[str, ...]
    what: str


KTO = "labelled answers, for the role labelled; read as another form, the label is ignored"
UNTRAINED = (  # keys that are refused in the roles without such a form
    _Untrained(("prompt", "completion", "label"), KTO),
    _Untrained(("messages", "label"), KTO),
    _Untrained(("conversations", "label"), KTO),
    _Untrained(("kto_tag",), KTO),
    _Untrained(("message_id", "parent_id", "text"), "single messages of OpenAssistant, whose trees are read instead"),
)


def forms_of(role: str) -> str:
    """The forms of a role with their keys, for an error."""
    return "; ".join(map(str, FORMS[role]))


def role_of(columns: Sequence[str]) -> str | None:
    """The only role with a form that fits these columns (inner ones as paths). None if none or several fit."""
    keys = {name.partition(".")[0] for name in columns}
    roles = [role for role, forms in FORMS.items() if _fitting(forms, keys)]
    return roles[0] if len(roles) == 1 else None


def choose(forms: Sequence[Form[Taken]], row: Values, named: FormName | None) -> Form[Taken]:
    """The form of a row, which may be named. Raises BadDocument, with `columns` if the row has the keys of no form."""
    refuse_media(row)
    if named:
        return _named(forms, row, named)
    present = [key for key, value in row.items() if value is not None]
    fitting = _fitting(forms, present) or _fitting(forms, row)  # a column may be null because of other rows
    untrained = _untrained(row)
    if untrained and not (fitting and forms is LABELLED):
        raise bad("no_method", f"its keys {', '.join(untrained.keys)} are those of {untrained.what}")
    if not fitting:
        raise _unknown(row, present)
    if len(fitting) > 1:
        clash = " and ".join(f"{form.name} ({', '.join(keys)})" for form, keys in fitting)
        raise bad("ambiguous_form", f"its keys are those of {clash}")
    return fitting[0][0]


def _named(forms: Sequence[Form[Taken]], row: Values, named: FormName) -> Form[Taken]:
    form = next(form for form in forms if form.name == named)
    if any(all(key in row for key in keys) for keys in form.keys):
        return form
    raise BadDocument("unknown_form", columns=columns_of(row), why=f"lacks the keys of {form}")


def _fitting(forms: Sequence[Form[Taken]], keys: Collection[str]) -> list[tuple[Form[Taken], tuple[str, ...]]]:
    return [(form, by) for form in forms if (by := form.fits(keys)) is not None]


def _untrained(row: Values) -> _Untrained | None:
    return next((each for each in UNTRAINED if all(_has_value(row, key) for key in each.keys)), None)


def _has_value(row: Values, key: str) -> bool:
    """Whether a key has a value. A label is one of KTO only if it is true or false, or 1 or 0."""
    value = row.get(key)
    return is_label(value) if key == "label" else value is not None


def _unknown(row: Values, present: Collection[str]) -> BadDocument:
    names = columns_of(row)
    why = f"its keys are {', '.join(names) or 'none'}"
    for role, forms in FORMS.items():
        for form, _ in _fitting(forms, present):
            why += f", as {form.name} of role {role} has them"
    return BadDocument("unknown_form", columns=names, why=why)
