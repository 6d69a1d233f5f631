"""Where in a text a name can stand: at a capital that neither grammar nor code explains.

spaCy's encoder sees four tokens to each side (four convolutions of width 3), so what it says of a word needs no more of
the text than a window around that word: the findings in windows are those in the whole text. Which words need none:
words of code (`DataFrame`, `os.Path`), abbreviations in capitals, function words, and at the start of a sentence verbs,
adverbs and what the same text also writes small. A text without any capital is not written by the rules: there, each
word that no dictionary has may be a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

Span = tuple[int, int]

# Code on either side is no prose. Of the letters beyond ASCII, Latin, Greek and Cyrillic blocks hold both cases
_CAPITALISED = re.compile(
    r"(?<![\w.\\/@#$`=<{])[A-Z\u00c0-\u00de\u0100-\u024f\u0370-\u04ff\u1e00-\u1eff][\w'’\-]*+(?![(\[{=_\\]|[.:/]\w)"
)
_WORD = re.compile(r"(?<![\w.\\/@#$`=<{])[^\W\d_]{2,}+(?![(\[{=_\\]|[.:/]\w)")
_SMALL = re.compile(r"(?<![\w.\\/@#$`])[a-z]{2,}")
_START = re.compile(
    r"(?:[.!?:;][\"')\]]*\s|\n\s*\n|\n[ \t]*(?:[>*\-•|#+]|\d+[.)]))[\s>*\-•\"'(\[|#+]*\Z|\A[\s\"'(\[>]*\Z"
)
_ALONE = re.compile(r"[ \t]*(?:\Z|\n(?![ \t]*[-=~^*#\"]{3}))")  # the rest of a line, not the heading above a rule
_LONGEST = 40  # characters of a word that may be a name
_BACK = 12  # characters before a word that tell whether it starts a sentence
_CODE = re.compile(r"(?<!\AMc)(?<!\AMac)(?<!\A[DL][aei])(?<!\AVan)(?<=[a-zß-ÿ])[A-Z]|\d|_")
_PLACES = frozenset({"US", "USA", "UK", "UAE", "USSR", "NYC", "LA", "DC"})
_NEVER = frozenset(
    {"None", "True", "False", "Notes", "Parameters", "Args", "Example", "Examples", "Optional", "Default", "Defaults",
     "Unicode", "Boolean", "January", "February", "August", "September", "October", "November", "December",
     "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"}
)  # fmt: skip


class Lexicon(NamedTuple):
    """English words in lower case: function words, those that often start a sentence, all that a dictionary has."""

    function: frozenset[str]
    starters: frozenset[str]
    known: frozenset[str]


def places(text: str, lexicon: Lexicon) -> Iterator[Span]:
    """Words of a text that may belong to a name, by position."""
    if text.islower():
        for match in _WORD.finditer(text):
            if match.end() - match.start() <= _LONGEST and match.group() not in lexicon.known:
                yield match.span()
        return
    small: set[str] | None = None
    for match in _CAPITALISED.finditer(text):
        word = match.group()
        if not word[0].isupper() or word in _NEVER or _is_code(word):
            continue
        lower = word.lower()
        if lower in lexicon.function and word not in _PLACES:
            continue
        if _starts_sentence(text, match.start()) and not _ALONE.match(text, match.end()):
            if lower in lexicon.starters:
                continue
            if small is None:
                small = set(_SMALL.findall(text))
            if lower in small:
                continue
        yield match.span()


def _is_code(word: str) -> bool:
    if word.isupper() or len(word) > _LONGEST:
        return word not in _PLACES
    return _CODE.search(word) is not None


def _starts_sentence(text: str, position: int) -> bool:
    return _START.search(text, max(position - _BACK, 0), position) is not None
