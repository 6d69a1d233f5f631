"""A user's text in a conversation, so that no part of it becomes a control token, or reads as one turn more.

A template joins texts, and the tokenizer can't tell afterwards who wrote `<|end|>`. So a BREAK, a character that no
text holds, is put behind the first character of each control token in a content: what remains is matched as no token.
Its ids are taken out again once the whole text is encoded. Templates may trim, upper-case and search contents as ever.

Where a template opens turns by plain text (`[/INST]`, `ASSISTANT:`, our `<|user|>` over another vocabulary), that is
broken too: it stays the same text, in other tokens than the template's.

An answer may hold pairs of tags that aren't special, such as `<think>` and `</think>`; all others may not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from models.conversation.turns import Messages, TemplateFaultError, made_up, pattern_of, written_around

BREAK = "\U000ffffe"  # a noncharacter of Unicode, which is never interchanged
UNBREAKABLE = "control_token_in_text"
SHORTEST = 3  # characters of a plain text that opens a turn: a shorter one is all over any text


@dataclass(frozen=True)
class Controls:
    """What no content may hold, by who says it."""

    of_answers: re.Pattern[str]
    of_others: re.Pattern[str]

    def broken(self, messages: Messages) -> tuple[list[dict[str, str]], bool]:
        """The messages with breaks, and whether there are any."""
        found = [
            {name: text if name == "role" else self._broken(text, message["role"]) for name, text in message.items()}
            for message in messages
        ]
        return found, any(BREAK in text for message in found for text in message.values() if isinstance(text, str))

    def _broken(self, text: str, role: str) -> str:
        if not isinstance(text, str):
            return text
        pattern = self.of_answers if role == "assistant" else self.of_others
        return pattern.sub(lambda match: f"{match[0][0]}{BREAK}{match[0][1:]}", text.replace(BREAK, ""))


def controls_of(added: Mapping[str, bool], template: str, text_of: Callable[[Messages], str]) -> Controls:
    """`added` are the tokens that are matched in text, and whether each is special; `text_of` renders a
    conversation with the prompt that asks for an answer. Tokens of white space alone, as Gemma has some, are a text's
    own."""
    tokens = {token: special for token, special in added.items() if len(token) > 1 and not token.isspace()}
    around, known = _around(text_of), pattern_of(tokens)
    written = {*known.findall("\0".join(around))}
    of_answers = {token for token, special in tokens.items() if special} | (written - _pairs(tokens))
    of_others = of_answers | written | {token for token in tokens if token in template}
    plain = sorted({opening for text in around if (opening := _plain_opening(text, known))})
    return Controls(_any(of_answers, plain), _any(of_others, plain))


def kept_places(ids: Sequence[int], broken: Sequence[int], number: int) -> list[int]:
    """The places of ids that are no BREAK's, whose ids are `broken`. Raises TemplateFaultError unless there are as many
    as were written."""
    size = len(broken)
    found = [place for place in range(len(ids)) if size and list(ids[place : place + size]) == list(broken)]
    if size and len(found) != number:
        raise TemplateFaultError(UNBREAKABLE)
    gone = {place + more for place in found for more in range(size)}
    return [place for place in range(len(ids)) if place not in gone]


def _around(text_of: Callable[[Messages], str]) -> list[str]:
    """What the template writes before questions, before a system's words if it takes them, and to ask for an answer."""
    found: list[str] = []
    for messages in (made_up(3), made_up(1), made_up(2, system=True)):
        try:
            *before, prompt = written_around(text_of(messages), len(messages))
        except TemplateFaultError:
            continue
        said = zip(messages, before, strict=True)
        found += [*(text for message, text in said if message["role"] != "assistant"), prompt]
    return found


def _pairs(tokens: Iterable[str]) -> set[str]:
    """Tokens that open or close a part of an answer: those of which `<x>` and `</x>` are both there."""
    known = {*tokens}
    opening = {token for token in known if f"</{token[1:]}" in known}
    return opening | {f"</{token[1:]}" for token in opening}


def _plain_opening(text: str, known: re.Pattern[str]) -> str:
    """The plain text that opens a turn, as a pattern; none where a control token does. One control token may stand
    before it: it ends the turn before."""
    pieces = known.split(text)
    opening = pieces[-1].strip()
    if len(pieces) > 2 or len(opening) < SHORTEST or opening.isalnum():
        return ""
    return ("(?<![^\n])" if pieces[-1].startswith("\n") else "") + re.escape(opening)


def _any(tokens: Iterable[str], plain: Sequence[str]) -> re.Pattern[str]:
    """In any case of letters: a template may change it."""
    return re.compile("|".join([pattern_of(tokens).pattern, *plain]), re.IGNORECASE)
