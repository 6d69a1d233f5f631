"""Keeps any part of a user's text from becoming a control token, or from reading as another turn.

A template joins texts, and the tokenizer can't tell afterwards who wrote `<|end|>`. So a BREAK, a character that no
text holds, is put after the first character of each control token in a content, which then doesn't match as a token.
The BREAK's ids are removed once the whole text is encoded. Templates can trim, upper-case and search contents as usual.

If a template opens turns by plain text (`[/INST]`, `ASSISTANT:`, our `<|user|>` over another vocabulary), that text is
broken too: it stays the same text, in other tokens than the template's.

An answer may hold pairs of tags that aren't special, such as `<think>` and `</think>`, but no other control text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.conversation.turns import Messages, TemplateFaultError, made_up, pattern_of, written_around

BREAK = "\U000ffffe"  # a noncharacter of Unicode, which is never interchanged
UNBREAKABLE = "control_token_in_text"
SHORTEST = 3  # fewest characters of a plain text that opens a turn: shorter ones are everywhere in a text


@dataclass(frozen=True)
class Controls:
    """Patterns that contents must not hold, by speaker."""

    of_answers: re.Pattern[str]
    of_others: re.Pattern[str]

    def broken(self, messages: Messages) -> tuple[list[dict[str, Any]], bool]:
        """The messages with breaks, and whether any was put in."""
        broken = [
            {name: one if name == "role" else self.within(one, message["role"]) for name, one in message.items()}
            for message in messages
        ]
        return broken, has_break(broken)

    def within(self, value: Any, role: str) -> Any:
        """A value of a message, or a tool, with breaks in each of its texts."""
        if isinstance(value, str):
            pattern = self.of_answers if role == "assistant" else self.of_others
            return pattern.sub(lambda match: f"{match[0][0]}{BREAK}{match[0][1:]}", value.replace(BREAK, ""))
        if isinstance(value, Mapping):
            return {self.within(name, role): self.within(one, role) for name, one in value.items()}
        return [self.within(one, role) for one in value] if isinstance(value, list) else value


def has_break(value: Any) -> bool:
    """Whether a text within this has a break."""
    if isinstance(value, str):
        return BREAK in value
    if isinstance(value, Mapping):
        return any(has_break(one) for pair in value.items() for one in pair)
    return isinstance(value, list) and any(map(has_break, value))


def controls_of(added: Mapping[str, bool], template: str, text_of: Callable[[Messages], str]) -> Controls:
    """The controls of a template. `added` are the tokens that are matched in text, and whether each is special.
    `text_of` renders a conversation with the prompt that asks for an answer. Tokens of only white space, as Gemma has
    some, are ordinary text."""
    tokens = {token: special for token, special in added.items() if len(token) > 1 and not token.isspace()}
    around, known = _around(text_of), pattern_of(tokens)
    written = {*known.findall("\0".join(around))}
    of_answers = {token for token, special in tokens.items() if special} | (written - _pairs(tokens))
    of_others = of_answers | written | {token for token in tokens if token in template}
    plain = sorted({opening for text in around if (opening := _plain_opening(text, known))})
    return Controls(_any(of_answers, plain), _any(of_others, plain))


def kept_places(ids: Sequence[int], broken: Sequence[int], number: int) -> list[int]:
    """The places of ids that aren't those of a BREAK, which are `broken`. Raises TemplateFaultError unless `number`
    breaks are found, as many as were written."""
    size = len(broken)
    breaks = [place for place in range(len(ids)) if size and list(ids[place : place + size]) == list(broken)]
    if size and len(breaks) != number:
        raise TemplateFaultError(UNBREAKABLE)
    removed = {place + offset for place in breaks for offset in range(size)}
    return [place for place in range(len(ids)) if place not in removed]


def _around(text_of: Callable[[Messages], str]) -> list[str]:
    """The texts that the template writes before questions, before a system prompt if it takes one, and to ask for an
    answer."""
    texts: list[str] = []
    for messages in (made_up(3), made_up(1), made_up(2, system=True)):
        try:
            *before, prompt = written_around(text_of(messages), len(messages))
        except TemplateFaultError:
            continue
        pairs = zip(messages, before, strict=True)
        texts += [*(text for message, text in pairs if message["role"] != "assistant"), prompt]
    return texts


def _pairs(tokens: Iterable[str]) -> set[str]:
    """Tokens that open or close a part of an answer: `<x>` and `</x>`, if both exist."""
    known = {*tokens}
    opening = {token for token in known if f"</{token[1:]}" in known}
    return opening | {f"</{token[1:]}" for token in opening}


def _plain_opening(text: str, known: re.Pattern[str]) -> str:
    """The plain text that opens a turn, as a pattern. Empty if a control token opens it. One control token may precede
    it, which ends the previous turn."""
    pieces = known.split(text)
    opening = pieces[-1].strip()
    if len(pieces) > 2 or len(opening) < SHORTEST or opening.isalnum():
        return ""
    return ("(?<![^\n])" if pieces[-1].startswith("\n") else "") + re.escape(opening)


def _any(tokens: Iterable[str], plain: Sequence[str]) -> re.Pattern[str]:
    """A pattern of any of these, ignoring case, which a template may change."""
    return re.compile("|".join([pattern_of(tokens).pattern, *plain]), re.IGNORECASE)
