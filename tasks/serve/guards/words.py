"""Listed words and phrases, and regular expressions, in a text that grows.

Words are compared in lower case, without accents and invisible characters, and once more with digits and signs read as
the letters that they resemble (h4te). A word waits until it ends, the beginning of a phrase until it can't be one, and
a text from where a pattern may begin to match (partial matching of the package `regex`), up to its longest match.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import NamedTuple

import regex

from storage.errors import ConfigError
from tasks.filter.pii.fold import UNSEEN
from tasks.serve.guards.config import Action
from tasks.serve.guards.rule import CONTEXT, Mark

LIMIT = 0.05  # seconds of a pattern's search. A text on which one takes longer is refused
PROBES = ("a", "A", "0", " ", "a ", "a0 ", "-", ".", "a.", "aB", "é", "\n", '"', "/")  # repeated, to see whether it may

_WITHIN = f"{UNSEEN}\u0300-\u036f"  # combining marks
_WORD = re.compile(rf"[^\W_](?:[\w@$!{_WITHIN}]*[\w{_WITHIN}])?")
PHRASE = re.compile(rf"{_WORD.pattern}(?:[\s\-]{{1,4}}{_WORD.pattern})*")
_NOT_LETTERS = re.compile(f"[{_WITHIN}]")
_BETWEEN = re.compile(r"[\s\-]{1,4}")
_LOOKALIKE = re.compile(r"[0-9@$!]")
_AS_LETTERS = str.maketrans("013457@$!", "oieastasi")


class Entry(NamedTuple):
    """The rule, the action and the label of a listed word."""

    rule: str
    action: Action
    label: str


def plain(word: str) -> str:
    """A word as it is compared."""
    if not word.isascii():
        word = _NOT_LETTERS.sub("", unicodedata.normalize("NFKD", word))
    return word.lower()


def _spellings(text: str) -> set[str]:
    """The words of a text as they are compared."""
    words = set(map(plain, _WORD.findall(text)))
    return words | {word.translate(_AS_LETTERS) for word in words} if _LOOKALIKE.search(text) else words


class Words:
    """The rule of listed words and phrases."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self.entries = {" ".join(map(plain, _WORD.findall(text))): entry for text, entry in entries.items()}
        split = [phrase.split(" ") for phrase in self.entries]
        self.firsts = frozenset(words[0] for words in split)
        self.beginnings = {" ".join(words[:count]) for words in split for count in range(1, len(words))}

    def search(self) -> WordsSearch:
        """See `Rule`."""
        return WordsSearch(self)


class WordsSearch:
    """The rule's state in a text."""

    def __init__(self, rule: Words) -> None:
        self.done = 0
        self._rule = rule
        self._open: list[tuple[int, str]] = []  # where phrases may have begun, and their words so far
        self._last = 0

    def advance(self, text: str, base: int, step: int, final: bool) -> list[Mark]:
        """See `Search`."""
        if final and not self._open and self._rule.firsts.isdisjoint(_spellings(text[len(text) - step :])):
            self.done = base + len(text)
            return []
        marks = []
        for match in _WORD.finditer(text, len(text) - step):
            start, end = base + match.start(), base + match.end()
            spellings = _spellings(match[0])
            begun = [(start, spelling) for spelling in spellings]
            if self._open and _BETWEEN.fullmatch(text, self._last - base, match.start()):
                begun += [(first, f"{words} {spelling}") for first, words in self._open for spelling in spellings]
            self._open, self._last = [], end
            for first, phrase in begun:
                if entry := self._rule.entries.get(phrase):
                    marks.append(Mark(first, end, *entry))
                if phrase in self._rule.beginnings:
                    self._open.append((first, phrase))
        if final:
            self._open = []
        self.done = min((first for first, _ in self._open), default=base + len(text))
        return marks

    def sure(self, part: str) -> int:
        """See `Search`."""
        return self.done


class Pattern:
    """The rule of a regular expression. Raises ConfigError for one that takes too long on some text."""

    def __init__(self, pattern: str, longest: int, entry: Entry) -> None:
        self.compiled, self.longest, self.entry = regex.compile(pattern), longest, entry
        letters = "".join(re.findall(r"\w", pattern))
        for probe in (*PROBES, letters, *letters):
            for end in ("", "\0"):
                text = (probe * CONTEXT)[: CONTEXT + longest] + end
                try:
                    self.compiled.search(text, timeout=LIMIT)
                    self.compiled.search(text, partial=True, timeout=LIMIT)
                except TimeoutError as error:
                    raise ConfigError(
                        f"{entry.rule}: the pattern {pattern} takes too long on repeated {probe!r}.",
                        "Don't repeat what is itself repeated, as in (a+)+, and bound repetitions: a{1,20}.",
                    ) from error

    def search(self) -> PatternSearch:
        """See `Rule`."""
        return PatternSearch(self)


class PatternSearch:
    """The rule's state in a text."""

    def __init__(self, rule: Pattern) -> None:
        self.done = 0
        self._rule = rule

    def advance(self, text: str, base: int, step: int, final: bool) -> list[Mark]:
        """See `Search`."""
        marks: list[Mark] = []
        end, longest = base + len(text), self._rule.longest
        while True:
            try:
                match = self._rule.compiled.search(text, self.done - base, partial=not final, timeout=LIMIT)
            except TimeoutError:
                start, self.done = self.done, end
                return [*marks, Mark(start, end, self._rule.entry.rule, "refuse", "")]
            if match is None:
                self.done = end
                return marks
            start = base + match.start()
            if match.partial:
                self.done = max(start, end - longest)
                return marks
            # A match to its left, or a longer one, may end behind this text
            if not final and end - start <= longest:
                self.done = max(self.done, min(start, end - longest))
                return marks
            self.done = max(base + match.end(), start + 1)
            marks.append(Mark(start, self.done, *self._rule.entry))

    def sure(self, part: str) -> int:
        """See `Search`."""
        return self.done
