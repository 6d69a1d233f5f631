"""Possible positions of names in a text: capitals that neither grammar nor code explains.

spaCy's encoder sees four tokens on each side (four convolutions of width 3), so a word's label depends only on a window
around it, and findings in windows equal those in the whole text. Skipped are words of code (`DataFrame`, `os.Path`),
abbreviations in capitals, function words, and at the start of a sentence verbs, adverbs and words that the same text
also has in lower case. In a text without capitals, each word that isn't in the dictionary may be a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

Span = tuple[int, int]

# Not beside code. The ranges beyond ASCII (Latin, Greek and Cyrillic) include both cases
_CAPITALISED = re.compile(
    r"(?<![\w.\\/@#$`=<{])[A-Z\u00c0-\u00de\u0100-\u024f\u0370-\u04ff\u1e00-\u1eff][\w'’\-]*+(?![(\[{=_\\]|[.:/]\w)"
)
_WORD = re.compile(r"(?<![\w.\\/@#$`=<{])[^\W\d_]{2,}+(?![(\[{=_\\]|[.:/]\w)")
_SMALL = re.compile(r"(?<![\w.\\/@#$`])[a-z]{2,}")
_START = re.compile(
    r"(?:[.!?:;][\"')\]]*\s|\n\s*\n|\n[ \t]*(?:[>*\-•|#+]|\d+[.)]))[\s>*\-•\"'(\[|#+]*\Z|\A[\s\"'(\[>]*\Z"
)
_ALONE = re.compile(r"[ \t]*(?:\Z|\n(?![ \t]*[-=~^*#\"]{3}))")  # last on its line, and not in an underlined heading
_LONGEST = 40  # characters of a possible name
_BACK = 12  # characters before a word that decide whether it starts a sentence
_CODE = re.compile(r"(?<!\AMc)(?<!\AMac)(?<!\A[DL][aei])(?<!\AVan)(?<=[a-zß-ÿ])[A-Z]|\d|_")
_PLACES = frozenset({"US", "USA", "UK", "UAE", "USSR", "NYC", "LA", "DC"})
_NEVER = frozenset(
    {"None", "True", "False", "Notes", "Parameters", "Args", "Example", "Examples", "Optional", "Default", "Defaults",
     "Unicode", "Boolean", "January", "February", "August", "September", "October", "November", "December",
     "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"}
)  # fmt: skip


class Lexicon(NamedTuple):
    """English words in lower case: function words, words that often start a sentence, and a whole dictionary."""

    function: frozenset[str]
    starters: frozenset[str]
    known: frozenset[str]


def places(text: str, lexicon: Lexicon) -> Iterator[Span]:
    """Yield the words of a text that may be part of a name, by position."""
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
        starts = _START.search(text, max(match.start() - _BACK, 0), match.start())  # whether it starts a sentence
        if starts and not _ALONE.match(text, match.end()):
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
