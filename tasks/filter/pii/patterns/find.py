"""Personal data with a fixed form: from candidates to findings.

Three filters, each more precise and slower than the one before: the compiled scan finds digits, @ and colons; regular
expressions decide which entities are possible there (supersets of Presidio's patterns, so nothing is lost); Presidio's
recognisers then see a window of text around it. Their findings are checked against the surrounding text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from tasks.filter.pii.findings import Finding, in_order
from tasks.filter.pii.patterns import kernels
from tasks.filter.pii.patterns.candidates import Candidate
from tasks.filter.pii.patterns.plausible import (
    CONTEXT,
    DIAL_WORDS,
    DIALLED,
    DIALLED_AFTER,
    NATIONAL,
    NEAR,
    REACH,
    WEAK_CONTEXT,
    first_words,
    judged,
    says,
    words,
)
from tasks.filter.pii.patterns.recognisers import ASSIGNED, PEM_LENGTH, recognisers

Span = tuple[int, int]

_EDGE = (
    120  # a window grows to the next white space, by at most so many characters: a cut number would be another number
)
_LONGEST = 4000  # characters of a window, to bound the cost of a recogniser
_SPACE = re.compile(r"\s")
_BEFORE, _AFTER = 3, 4  # characters around a run of digits that may belong to a number

# Digits that are recognised without a word before them
_CARD = re.compile(r"[13456]\d{3}[- ]?\d{3,4}[- ]?\d{3,4}[- ]?\d{3,5}")
_SSN = re.compile(r"\d{3}[- .]\d\d[- .]\d{4}")
_FINNISH = re.compile(r"\d{6}[-+][0-9]{3}[0-9A-Y]", re.IGNORECASE)
# Runs of letters and digits
_CODES = {
    "IBAN_CODE": re.compile(r"[A-Z]{2}\d\d", re.IGNORECASE),
    "ES_NIE": re.compile(r"[X-Z]\d{7,8}-?[A-Z]$", re.IGNORECASE),
    "IT_FISCAL_CODE": re.compile(r"[A-Z]{6}[0-9L-V]{2}[A-Z][0-9L-V]{2}[A-Z][0-9L-V]{3}[A-Z]$", re.IGNORECASE),
    "FI_PERSONAL_IDENTITY_CODE": re.compile(r"\d{6}[-ABCDEFYXWVU]\d{3}[0-9A-Y]$", re.IGNORECASE),
}
_CRYPTO = re.compile(r"(?:bc1|[13])[a-zA-HJ-NP-Z0-9]{25,59}$", re.IGNORECASE)
_KEY = re.compile(
    r"A(?:KIA|SIA|BIA|CCA)[A-Z2-7]{16}|gh[pousr]_|github_pat_|gl(?:pat|dt|ptt|soat|rt|cbt|ft)-|xox[abeoprs]-"
    r"|(?:sk|rk)_(?:live|test)_|AIza|sk-|hf_|npm_|pypi-AgE"
)
_NAMED_KEY = re.compile(rf"(?:{ASSIGNED})(?:[_\-]?id)?[\"']?\s{{0,3}}(?:=|:|=>|:=)\s{{0,3}}[\"']", re.IGNORECASE)
_NAME_LENGTH = 250  # characters before a run that may include the name that a key is assigned to


def find_patterns(text: str, candidates: Iterable[Candidate], wanted: Collection[str], window: int) -> list[Finding]:
    """All findings in a text by position; recognisers see `window` characters on each side of a candidate."""
    spans: dict[str, list[Span]] = {}
    for kind, start, end in candidates:
        for entity, first, last in _shapes(text, kind, start, end):
            if entity in wanted:
                spans.setdefault(entity, []).append((first, last))
    return in_order(
        found
        for entity, places in spans.items()
        for finding in _recognised(text, entity, places, window)
        if (found := judged(text, finding)) is not None
    )


def _recognised(text: str, entity: str, spans: Sequence[Span], window: int) -> Iterator[Finding]:
    recogniser = recognisers()[entity]
    nothing: Any = None  # no output of a language model
    for start, end in windows(text, spans, window):
        for result in recogniser.analyze(text[start:end], [entity], nothing):
            yield Finding(entity, start + result.start, start + result.end, round(result.score, 3))


def windows(text: str, spans: Iterable[Span], window: int) -> list[Span]:
    """Spans with `window` characters on each side, grown to white space, merged where they meet."""
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
    """(entity, start, end) of everything that a candidate could be."""
    if kind == kernels.AT:
        yield "EMAIL_ADDRESS", start, end
    elif kind == kernels.DIGITS:
        yield from _numbers(text, start, end)
    elif kind == kernels.DOTTED:
        yield "IP_ADDRESS", start, end
    elif kind == kernels.COLONS:
        yield "IP_ADDRESS", start, end
        yield "MAC_ADDRESS", start, end
    elif kind == kernels.CODE:
        yield from _codes(text, start, end)
    elif kind == kernels.TOKEN:
        yield from _tokens(text, start, end)
    elif kind == kernels.PEM:
        following = text.find("-----BEGIN", end, start + PEM_LENGTH)
        yield "PRIVATE_KEY", start, following if following >= 0 else min(start + PEM_LENGTH, len(text))


def _numbers(text: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    first, last = max(start - _BEFORE, 0), min(end + _AFTER, len(text))
    for entity, pattern in (("CREDIT_CARD", _CARD), ("US_SSN", _SSN), ("FI_PERSONAL_IDENTITY_CODE", _FINNISH)):
        for match in pattern.finditer(text, start, last):
            yield entity, *match.span()
    for match in NATIONAL.finditer(text, first, last):
        yield "PHONE_NUMBER", *match.span()
    plus = text.find("+", first, last)
    while plus >= 0:
        yield "PHONE_NUMBER", plus, min(plus + NEAR, last)
        plus = text.find("+", plus + 1, last)
    before = words(text[max(first - REACH, 0) : start])
    if not DIAL_WORDS.isdisjoint(before) and DIALLED.search(text, max(first - NEAR, 0), start):
        yield "PHONE_NUMBER", first, min(last, start + 2 * NEAR)
    if DIALLED_AFTER.match(text, end):
        yield "PHONE_NUMBER", max(first, end - 2 * NEAR), last
    yield from _said(text, before, first, min(last, start + 2 * REACH))


def _said(text: str, before: Iterable[str], start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """The entities that a word before the digits announces."""
    if not first_words().isdisjoint(before):
        for entity in (*CONTEXT, *WEAK_CONTEXT):
            if says(entity).search(text, max(start - REACH, 0), end):
                yield entity, start, end


def _codes(text: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    for entity, pattern in _CODES.items():
        if pattern.match(text, start, end):
            yield entity, start, end
    if end - start <= NEAR:
        yield from _said(text, words(text[max(start - REACH, 0) : start]), start, end)


def _tokens(text: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    if _CRYPTO.match(text, start, end):
        yield "CRYPTO", start, end
    if text.startswith("eyJ", start):
        yield "JSON_WEB_TOKEN", start, end
    key = _KEY.search(text, start, min(start + _NAME_LENGTH, end))
    if key:
        yield "API_KEY", key.start(), end
    for name in _NAMED_KEY.finditer(text, max(start - _NAME_LENGTH, 0), start):
        yield "API_KEY", name.start(), min(end, start + _NAME_LENGTH)
