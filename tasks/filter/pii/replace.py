"""Replacing findings by placeholders or surrogates."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tasks.filter.pii.config import Action
from tasks.filter.pii.findings import Finding
from tasks.filter.pii.surrogates import surrogate


class Replacement(NamedTuple):
    """A replaced finding, and its position [start:end] in the new text, in characters."""

    finding: Finding
    start: int
    end: int


def replace(
    text: str, findings: Iterable[Finding], action_of: Callable[[Finding], Action], salt: str
) -> tuple[str, list[Replacement]]:
    """The text with findings replaced according to `action_of`, and the replacements by position.

    `redact` inserts a typed placeholder such as <EMAIL_ADDRESS>. `surrogate` inserts a value of the same kind that
    nobody has, the same for the same value and `salt` in any text, or the placeholder if no values are reserved for the
    kind. Findings with `keep` or `drop` stay, because dropping removes documents. Of overlapping findings the one with
    the highest score is replaced, of equal ones the longest.
    """
    planned = [(finding, action_of(finding)) for finding in findings]
    actions = {finding: action for finding, action in planned if action in ("redact", "surrogate")}
    parts: list[str] = []
    done: list[Replacement] = []
    position = length = 0
    for finding in without_overlaps(actions):
        value = text[finding.start : finding.end]
        new = surrogate(finding.entity, value, salt) if actions[finding] == "surrogate" else None
        new = new or f"<{finding.entity}>"
        start = length + finding.start - position
        parts += [text[position : finding.start], new]
        done.append(Replacement(finding, start, start + len(new)))
        position, length = finding.end, start + len(new)
    return "".join([*parts, text[position:]]), done


def without_overlaps(findings: Iterable[Finding]) -> list[Finding]:
    """Findings without overlaps, by position: of overlapping ones the highest score, of equal ones the longest.

    Each group of overlapping findings is resolved by itself, so that a text with n findings takes O(n log n).
    """
    taken: list[Finding] = []
    group: list[Finding] = []
    reach = 0
    for finding in sorted(findings, key=lambda f: (f.start, f.end)):
        if group and finding.start >= reach:
            taken += _resolve(group)
            group = []
        group.append(finding)
        reach = max(reach, finding.end) if len(group) > 1 else finding.end
    return taken + _resolve(group)


def _resolve(group: list[Finding]) -> list[Finding]:
    if len(group) == 1:
        return group
    taken: list[Finding] = []  # by position, so that only the neighbours can overlap
    for finding in sorted(group, key=lambda f: (-f.score, f.start - f.end, f.start, f.entity)):
        place = bisect_right(taken, finding.start, key=lambda f: f.start)
        behind = place == 0 or taken[place - 1].end <= finding.start
        if behind and (place == len(taken) or finding.end <= taken[place].start):
            taken.insert(place, finding)
    return taken
