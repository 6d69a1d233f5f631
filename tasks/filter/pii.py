"""Personal data: found by Presidio's pattern recognisers, each run only where a cheap scan saw a candidate.

Presidio on whole documents with its language model does 8 documents a second; a scan for what every finding must
contain (an @, seven digits, …), then the recognisers on a window around it, does hundreds and finds the same. Found
are e-mail addresses, telephone numbers, public IP addresses, credit cards (Luhn), IBANs (mod 97) and US social
security numbers. Not found are names, postal addresses, or anything else that needs understanding.

What the recognisers alone would get wrong is dropped here: years and page ranges as telephone numbers, version
numbers, `::` and private networks as IP addresses.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from presidio_analyzer import EntityRecognizer

EMAIL, PHONE, IP = "EMAIL_ADDRESS", "PHONE_NUMBER", "IP_ADDRESS"
CARD, IBAN, SSN = "CREDIT_CARD", "IBAN_CODE", "US_SSN"
ENTITIES = (EMAIL, PHONE, IP, CARD, IBAN, SSN)

_EDGE = 120  # a window grows to the next white space, this far at most: a cut number would be another number

# What a finding must contain; e-mail addresses are looked for by their @ alone, which is faster than a pattern.
_DIGITS = re.compile(r"\d(?:[ ().\-/\u00a0]{0,3}\d){6,}")
_SCANS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (_DIGITS, (PHONE, CARD, SSN)),
    (re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d|[0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:]"), (IP,)),
    (re.compile(r"[A-Z]{2}\d{2}[ -]?[A-Z0-9]{4}"), (IBAN,)),
)

# What makes digits a telephone number, beyond Presidio's numbering plans, for which many a table row is a valid number.
_DIALLED = re.compile(r"\b(?:tel|phone|telephone|call|fax|mobile|cell|cellphone|hotline|whatsapp)\b", re.IGNORECASE)
_NATIONAL = re.compile(
    r"(?:\(\d{3}\) ?\d{3}[-.]\d{4}|\d{3}([-.])\d{3}\1\d{4}|0\d{1,4}(?: \d{2,4}){2,5}"
    r"|0\d{2,4}[-/]\d{5,8}|00\d(?:-\d{3,4}){3})"
    r"(?:x\d+)?"
)
_VERSION_BEFORE = re.compile(
    r"(?:\b(?:v|vers?|versions?|releases?|rev|revision|build|firmware|section|chapter)\.?(?: (?:after|before|than))?"
    r"|[=<>~!^§])\s?[:=]?\s?$|[\w.\-]$",
    re.IGNORECASE,
)
_CONTEXT = 30  # characters before a finding that may say what it is


class Finding(NamedTuple):
    """One piece of personal data: text[start:end], with Presidio's score."""

    entity: str
    start: int
    end: int
    score: float


def find_pii(text: str, window: int) -> list[Finding]:
    """All findings in a text, by position; recognisers see `window` characters on each side of a candidate."""
    found: set[Finding] = set()
    nothing: Any = None  # of what a language model would have said
    for entities, spans in _candidates(text):
        for start, end in _windows(text, spans, window):
            piece = text[start:end]
            for entity in entities:
                for result in recognisers()[entity].analyze(piece, [entity], nothing):
                    finding = Finding(entity, start + result.start, start + result.end, round(result.score, 3))
                    if _is_plausible(text, finding):
                        found.add(finding)
    return sorted(found, key=lambda finding: (finding.start, finding.end, finding.entity, -finding.score))


def redact(text: str, findings: Iterable[Finding]) -> tuple[str, list[Finding]]:
    """Replace findings by typed placeholders such as <EMAIL_ADDRESS>: the new text, and what was replaced.

    Of overlapping findings the surest is taken, of equals the longest.
    """
    taken: list[Finding] = []
    for finding in sorted(findings, key=lambda f: (-f.score, f.start - f.end, f.start, f.entity)):
        if all(finding.end <= other.start or other.end <= finding.start for other in taken):
            taken.append(finding)
    taken.sort(key=lambda finding: finding.start)
    parts, position = [], 0
    for finding in taken:
        parts += [text[position : finding.start], f"<{finding.entity}>"]
        position = finding.end
    return "".join([*parts, text[position:]]), taken


@functools.cache
def recognisers() -> dict[str, EntityRecognizer]:
    """Presidio's recognisers by entity: patterns and checksums, no language model, no network."""
    with _absent("transformers", "torch"):
        from presidio_analyzer.predefined_recognizers import (
            CreditCardRecognizer,
            EmailRecognizer,
            IbanRecognizer,
            IpRecognizer,
            PhoneRecognizer,
            UsSsnRecognizer,
        )
    from tldextract import TLDExtract

    domains = TLDExtract(suffix_list_urls=(), cache_dir=None)  # the list that it ships: nothing is downloaded

    class OfflineEmailRecognizer(EmailRecognizer):
        def validate_result(self, pattern_text: str) -> bool:
            return bool(domains(pattern_text.rpartition("@")[2]).top_domain_under_public_suffix)

    return {
        EMAIL: OfflineEmailRecognizer(),
        PHONE: PhoneRecognizer(),
        IP: IpRecognizer(),
        CARD: CreditCardRecognizer(),
        IBAN: IbanRecognizer(),
        SSN: UsSsnRecognizer(),
    }


def _candidates(text: str) -> Iterator[tuple[Sequence[str], list[tuple[int, int]]]]:
    spans = []
    position = text.find("@")
    while position >= 0:
        spans.append((position, position + 1))
        position = text.find("@", position + 1)
    if spans:
        yield (EMAIL,), spans
    for pattern, entities in _SCANS:
        spans = [match.span() for match in pattern.finditer(text)]
        if spans:
            yield entities, spans


def _windows(text: str, spans: Sequence[tuple[int, int]], window: int) -> list[tuple[int, int]]:
    """Spans with `window` characters on each side, grown to white space, merged where they meet."""
    merged: list[tuple[int, int]] = []
    for start, end in spans:
        start, end = max(start - window, 0), min(end + window, len(text))
        for _ in range(_EDGE):
            if start == 0 or text[start - 1].isspace():
                break
            start -= 1
        for _ in range(_EDGE):
            if end == len(text) or text[end].isspace():
                break
            end += 1
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _is_plausible(text: str, finding: Finding) -> bool:
    value = text[finding.start : finding.end]
    before, after = text[max(finding.start - _CONTEXT, 0) : finding.start], text[finding.end : finding.end + 2]
    if finding.entity == IP:
        is_version = _VERSION_BEFORE.search(before) or re.match(r"[.\-+]\w|\w", after)
        return not is_version and _is_public_address(value)
    if finding.entity == PHONE:
        is_part = re.search(r"[\w./@\-]$", before) or re.match(r"[./:\-]?\d", after)
        is_called = value.startswith("+") or _DIALLED.search(before) or _NATIONAL.fullmatch(value)
        return bool(is_called) and not is_part and sum(character.isdigit() for character in value) >= 7
    return True


def _is_public_address(value: str) -> bool:
    """Whether it can point at a person: `::`, loopback, private and reserved networks do not."""
    return ipaddress.ip_interface(value.partition("%")[0]).ip.is_global


@contextmanager
def _absent(*modules: str) -> Iterator[None]:
    """Have optional imports of `modules` fail, unless they are loaded already.

    Presidio imports transformers, and with it torch, for recognisers that are not used here: 5 s and 400 MB a worker.
    """
    hidden: dict[str, Any] = {name: None for name in modules if name not in sys.modules}
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
