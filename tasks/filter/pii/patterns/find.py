"""Personal data with a fixed form: from candidates to findings.

The compiled scan finds digits, @, colons and names of secrets. E-mail addresses, cards, IBANs, telephone numbers and
secrets have their own searches, which judge a candidate in place. For the rest, regular expressions decide which
entities are possible (supersets of Presidio's patterns, so nothing is lost), Presidio's recognisers see a window of
text around the candidate, and their findings are checked against the surrounding text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from tasks.filter.pii.findings import Finding, in_order
from tasks.filter.pii.patterns import kernels
from tasks.filter.pii.patterns.candidates import Candidate
from tasks.filter.pii.patterns.cards import find_cards
from tasks.filter.pii.patterns.emails import find_emails
from tasks.filter.pii.patterns.ibans import find_ibans
from tasks.filter.pii.patterns.phones import find_phones
from tasks.filter.pii.patterns.plausible import (
    CONTEXT,
    NEAR,
    REACH,
    WEAK_CONTEXT,
    continues,
    first_words,
    judged,
    says,
    words,
)
from tasks.filter.pii.patterns.recognisers import recognisers
from tasks.filter.pii.patterns.secrets import KINDS, SECRETS, find_secrets

Span = tuple[int, int]

_EDGE = 120  # maximum characters that a window grows to the next white space, so that it doesn't cut a number
_LONGEST = 4000  # characters of a window, to bound the cost of a recogniser
_SPACE = re.compile(r"\s")
_AFTER = 4  # characters after a run of digits that may belong to a number

# Our own searches: (text, candidates of one kind) → findings
_OWN: dict[str, tuple[int, Callable[[str, Iterable[Span]], Iterator[Finding]]]] = {
    "EMAIL_ADDRESS": (kernels.AT, find_emails),
    "CREDIT_CARD": (kernels.DIGITS, find_cards),
    "IBAN_CODE": (kernels.CODE, find_ibans),
    "PHONE_NUMBER": (kernels.DIGITS, find_phones),
}
# Digits recognised without a word before them
_SSN = re.compile(r"\d{3}[- .]\d\d[- .]\d{4}")
_FINNISH = re.compile(r"\d{6}[-+][0-9]{3}[0-9A-Y]", re.IGNORECASE)
_DIGITS_OF_IDS = 7  # in a national ID that a word announces
# Runs of letters and digits
_CODES = {
    "ES_NIE": re.compile(r"[X-Z]\d{7,8}-?[A-Z]$", re.IGNORECASE),
    "IT_FISCAL_CODE": re.compile(r"[A-Z]{6}[0-9L-V]{2}[A-Z][0-9L-V]{2}[A-Z][0-9L-V]{3}[A-Z]$", re.IGNORECASE),
    "FI_PERSONAL_IDENTITY_CODE": re.compile(r"\d{6}[-ABCDEFYXWVU]\d{3}[0-9A-Y]$", re.IGNORECASE),
    "CRYPTO": re.compile(r"(?:bc1|[13])[a-zA-HJ-NP-Z0-9]{25,59}$", re.IGNORECASE),
}
_ANNOUNCED = re.compile(r"[A-Z]{0,5}\d{4,9}-?[A-Z]{0,3}$|[A-Z]{1,3}\d{6,12}$|\d{6,12}[A-Z]", re.IGNORECASE)


def find_patterns(text: str, candidates: Sequence[Candidate], wanted: Collection[str], window: int) -> list[Finding]:
    """All findings in a text by position. Presidio's recognisers see `window` characters around a candidate."""
    findings: list[Finding] = []
    for entity, (kind, search) in _OWN.items():
        if entity in wanted:
            findings += search(text, [(start, end) for its, start, end in candidates if its == kind])
    if not SECRETS.isdisjoint(wanted):
        secrets = find_secrets(text, [candidate for candidate in candidates if candidate[0] in KINDS])
        findings += (finding for finding in secrets if finding.entity in wanted)
    spans: dict[str, list[Span]] = {}
    for kind, start, end in candidates:
        for entity, first, last in _shapes(text, kind, start, end):
            if entity in wanted:
                spans.setdefault(entity, []).append((first, last))
    for entity, places in spans.items():
        for finding in _recognised(text, entity, places, window):
            kept = judged(text, finding)
            if kept is not None:
                findings.append(kept)
    return in_order(_without_doubles(findings))


def _without_doubles(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Drop telephone numbers that are part of a surer finding, such as a card or a social security number."""
    others = [finding for finding in findings if finding.entity != "PHONE_NUMBER"]
    for finding in findings:
        if finding.entity == "PHONE_NUMBER" and any(
            finding.start < other.end and other.start < finding.end and other.score >= finding.score for other in others
        ):
            continue
        yield finding


def _recognised(text: str, entity: str, spans: Sequence[Span], window: int) -> Iterator[Finding]:
    recogniser = recognisers()[entity]
    nothing: Any = None  # in place of a language model's output
    for start, end in windows(text, spans, window):
        plain = text[start:end].encode("ascii", "replace").decode()  # a Han character is not part of a number beside it
        for result in recogniser.analyze(plain, [entity], nothing):
            yield Finding(entity, start + result.start, start + result.end, round(result.score, 3))


def windows(text: str, spans: Iterable[Span], window: int) -> list[Span]:
    """Spans with `window` characters on each side, grown to white space, and merged if they meet."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        start, end = max(first - window, 0), min(last + window, len(text))
        if merged and end <= merged[-1][1]:
            continue
        before = text[max(start - _EDGE, 0) : start]
        start -= len(before.rsplit(maxsplit=1)[-1]) if before and not before[-1].isspace() else 0
        space = _SPACE.search(text, end, min(end + _EDGE, len(text)))
        end = space.start() if space else min(end + _EDGE, len(text))
        if merged and start <= merged[-1][1] and end - merged[-1][0] <= _LONGEST:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def _shapes(text: str, kind: int, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Yield (entity, start, end) of everything that a candidate could be."""
    if kind == kernels.DIGITS:
        yield from _numbers(text, start, end)
    elif kind == kernels.DOTTED:
        yield "IP_ADDRESS", start, end
    elif kind == kernels.COLONS:
        yield "IP_ADDRESS", start, end
        yield "MAC_ADDRESS", start, end
    elif kind == kernels.CODE:
        for entity, pattern in _CODES.items():
            if pattern.match(text, start, end):
                yield entity, start, end
        if end - start <= NEAR and _ANNOUNCED.match(text, start, end):
            yield from _announced(text, start, end)


def _numbers(text: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    if text[start - 1 : start] == "." or continues(text, start - 1):  # decimals, or a part of a word
        return
    last = min(end + _AFTER, len(text))
    for entity, pattern in (("US_SSN", _SSN), ("FI_PERSONAL_IDENTITY_CODE", _FINNISH)):
        for match in pattern.finditer(text, start, last):
            yield entity, *match.span()
    if end - start >= _DIGITS_OF_IDS or last > end:
        yield from _announced(text, start, min(last, start + 2 * REACH))


def _announced(text: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Yield the entities that a word before the digits announces."""
    if not first_words().isdisjoint(words(text[max(start - REACH, 0) : start])):
        for entity in (*CONTEXT, *WEAK_CONTEXT):
            if says(entity).search(text, max(start - REACH, 0), end):
                yield entity, start, end
