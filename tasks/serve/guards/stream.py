"""Reads a text that grows by the rules of a policy, and releases it up to where nothing more can be found.

Chunks are joined without blanks, and each text has a state of its own. Equal texts get equal marks however they are
cut (`rule.py`). Of ordinary prose, at most a word is held back. A run with digits is held back with the text behind it
that decides on it, and otherwise as much as each rule says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tasks.serve.guards.config import Action, Direction
from tasks.serve.guards.hidden import REPLACEMENT, with_whole_characters
from tasks.serve.guards.rule import CONTEXT, STEP, Mark, Rule

SLACK = 4096  # characters of released text that are kept before most are forgotten
_HALF = re.compile("[\ud800-\udbff]\\Z")


@dataclass(frozen=True)
class Finding:
    """How often a rule found something, never what."""

    rule: str
    action: Action
    direction: Direction
    count: int = 1


class Tally:
    """Counts findings by rule."""

    def __init__(self, direction: Direction) -> None:
        self.direction: Direction = direction
        self._counts: Counter[tuple[str, Action]] = Counter()

    def add(self, rule: str, action: Action, count: int = 1) -> None:
        """Count findings."""
        self._counts[rule, action] += count

    @property
    def findings(self) -> list[Finding]:
        """A finding for each rule that found something."""
        return [Finding(rule, action, self.direction, count) for (rule, action), count in self._counts.items()]


def united(marks: Iterable[Mark]) -> Iterator[list[Mark]]:
    """Yield groups of marks that overlap, by position."""
    group: list[Mark] = []
    end = 0
    for mark in sorted(marks, key=lambda mark: (mark.start, -mark.end)):
        if group and mark.start >= end:
            yield group
            group = []
        end = max(end, mark.end) if group else mark.end
        group.append(mark)
    if group:
        yield group


def label_of(group: Sequence[Mark]) -> str:
    """The label in place of a group: that of the mark that begins first, nothing if it continues an earlier one."""
    return "" if group[0].continues else group[0].label


class OutputGuard:
    """The state of one answer. Not thread-safe."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.refused: Finding | None = None
        self._searches = [rule.search() for rule in rules]
        self._tally = Tally("output")
        self._text, self._base = "", 0  # the text in steps that was read, from the position `_base` on
        self._part = ""  # of a step
        self._half = ""  # of a surrogate pair
        self._sent = 0  # up to this position
        self._marks: list[Mark] = []  # behind it

    @property
    def findings(self) -> list[Finding]:
        """The findings in what was released, and those that are only reported."""
        return self._tally.findings

    def feed(self, text: str) -> str:
        """Read more of the answer. Returns the text that may be sent now, perhaps none."""
        if self._half or not text.isascii():
            text = self._whole_characters(text)
        if not text or self.refused is not None:
            return ""
        part = self._part + text
        released, at = "", 0
        while step := STEP.match(part, at):
            at = step.end()
            self._advance(step[0], final=False)
            if len(self._text) > 2 * SLACK:
                released += self._release(min(search.done for search in self._searches))
                if self.refused is not None:
                    return released
        self._part = part[at:]
        if self._sent == self._base + len(self._text):
            return released
        if self._part:
            return released + self._release(min(search.sure(self._part) for search in self._searches))
        return released + self._release(min(search.done for search in self._searches))

    def finish(self) -> str:
        """The rest, at the end of the answer."""
        if self.refused is not None:
            return ""
        rest = self._part + (REPLACEMENT if self._half else "")
        self._part = self._half = ""
        self._advance(rest, final=True)
        return self._release(self._base + len(self._text))

    def _whole_characters(self, text: str) -> str:
        """The text with surrogate pairs joined across chunks. A lone surrogate, which can't be sent, is replaced."""
        text, self._half = self._half + text, ""
        if half := _HALF.search(text):
            text, self._half = text[:-1], half[0]
        return with_whole_characters(text)[0]

    def _advance(self, step: str, *, final: bool) -> None:
        self._text += step
        for search in self._searches:
            for mark in search.advance(self._text, self._base, len(step), final):
                if mark.action != "allow":
                    self._marks.append(mark)
                elif not mark.continues:
                    self._tally.add(mark.rule, mark.action)

    def _release(self, until: int) -> str:
        """The text up to a position, or up to a finding that reaches beyond it."""
        parts: list[str] = []
        waiting: list[Mark] = []
        for group in united(self._marks) if self._marks else ():
            start, end = group[0].start, max(mark.end for mark in group)
            if end > until:
                until = min(until, start)
                waiting += group
                continue
            parts.append(self._between(self._sent, start))
            for mark in group:
                if not mark.continues:
                    self._tally.add(mark.rule, mark.action)
            if refused := next((mark for mark in group if mark.action == "refuse"), None):
                self.refused = Finding(refused.rule, "refuse", "output")
                self._text = self._part = ""
                self._marks = []
                return "".join(parts)
            parts.append(label_of(group))
            self._sent = end
        self._marks = waiting
        parts.append(self._between(self._sent, until))
        self._sent = max(until, self._sent)
        if self._sent - self._base > SLACK:
            forgotten = self._sent - CONTEXT - self._base
            self._text, self._base = self._text[forgotten:], self._base + forgotten
        return "".join(parts)

    def _between(self, start: int, end: int) -> str:
        return self._text[start - self._base : max(end, start) - self._base]
