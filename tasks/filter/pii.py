"""Personal data by Presidio's pattern recognisers, run only where something can be.

A linear scan finds candidates (an @, a run of digits, dotted or coloned numbers); the recognisers see a window around
each, which costs a hundredth of the whole text and loses nothing, since a pattern's match lies around its candidate.
What Presidio takes for an address or a number but is none (a version, a C++ scope, a year) is refused here.
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

CANDIDATES = {
    "EMAIL_ADDRESS": re.compile(r"@"),
    "IP_ADDRESS": re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d|[0-9a-fA-F]{1,4}:[0-9a-fA-F:]*:[0-9a-fA-F]"),
    "PHONE_NUMBER": re.compile(r"(?:\+|\(|\b)\d[\d().\- ]{6,}\d"),
    "CREDIT_CARD": re.compile(r"\b\d(?:[ -]?\d){11,18}\b"),
    "IBAN_CODE": re.compile(r"\b[A-Z]{2}\d{2}[ A-Z0-9]{10,}"),
    "US_SSN": re.compile(r"\b\d{3}[- ]\d{2}[- ]\d{4}\b"),
}
VERSION_BEFORE = re.compile(r"(?:version|release|python|v|==|>=|<=|~=|section)[\s:]*$", re.IGNORECASE)
PHONE_SHAPE = re.compile(r"^(?:\+|\(|\d{3}[-. ]\d{3}[-. ]\d{4}|0\d|1[-. ]\d{3})")
EDGE = re.compile(r"\s")


class Finding(NamedTuple):
    """An entity at `text[start:end]` with Presidio's confidence."""

    entity: str
    start: int
    end: int
    score: float


@functools.cache
def _recognizers() -> dict[str, Any]:
    import tldextract
    from presidio_analyzer.predefined_recognizers import (
        CreditCardRecognizer,
        EmailRecognizer,
        IbanRecognizer,
        IpRecognizer,
        PhoneRecognizer,
        UsSsnRecognizer,
    )

    # The list of domain endings that comes with the package: without this, the first address goes to the network.
    tldextract.extract = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
    made = (
        EmailRecognizer(), IpRecognizer(), PhoneRecognizer(), CreditCardRecognizer(), IbanRecognizer(), UsSsnRecognizer(),
    )  # fmt: skip
    return {recognizer.supported_entities[0]: recognizer for recognizer in made}


def find_pii(text: str, window: int) -> list[Finding]:
    """All findings, in order, without overlaps: of two that overlap, the surer, then the longer one stays."""
    found: set[Finding] = set()
    for entity, pattern in CANDIDATES.items():
        for start, end in _windows(text, pattern, window):
            for result in _recognizers()[entity].analyze(text[start:end], [entity], None):
                finding = Finding(entity, start + result.start, start + result.end, float(result.score))
                if not _is_mistaken(text, finding):
                    found.add(finding)
    chosen: list[Finding] = []
    for finding in sorted(found, key=lambda f: (-f.score, f.start - f.end, f.start, f.entity)):
        if all(finding.end <= other.start or finding.start >= other.end for other in chosen):
            chosen.append(finding)
    return sorted(chosen, key=lambda finding: finding.start)


def redact(text: str, findings: list[Finding]) -> str:
    """The text with each finding replaced by a typed placeholder such as <EMAIL_ADDRESS>."""
    parts, at = [], 0
    for finding in findings:
        parts += [text[at : finding.start], f"<{finding.entity}>"]
        at = finding.end
    return "".join([*parts, text[at:]])


def _windows(text: str, pattern: re.Pattern[str], window: int) -> list[tuple[int, int]]:
    """Merged stretches of `window` characters around each candidate, widened to white space so no word is cut."""
    merged: list[tuple[int, int]] = []
    for match in pattern.finditer(text):
        start, end = max(0, match.start() - window), min(len(text), match.end() + window)
        while start > 0 and match.start() - start < 4 * window and not EDGE.match(text[start - 1]):
            start -= 1
        while end < len(text) and end - match.end() < 4 * window and not EDGE.match(text[end]):
            end += 1
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _is_mistaken(text: str, finding: Finding) -> bool:
    value = text[finding.start : finding.end]
    before = text[max(0, finding.start - 12) : finding.start]
    if finding.entity == "IP_ADDRESS":
        return bool(VERSION_BEFORE.search(before)) or ("." not in value and sum(map(str.isdigit, value)) < 2)
    if finding.entity == "PHONE_NUMBER":
        return not PHONE_SHAPE.match(value) or sum(map(str.isdigit, value)) < 9
    return False
