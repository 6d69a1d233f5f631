"""Secrets: keys and tokens, passwords, JSON web tokens and private keys, among the candidates of the scan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tasks.filter.pii.findings import Finding
from tasks.filter.pii.patterns import kernels
from tasks.filter.pii.patterns.assigned import assigned_at, bearer_at, flag_at, userinfo_at
from tasks.filter.pii.patterns.candidates import Candidate
from tasks.filter.pii.patterns.issuers import secret_at
from tasks.filter.pii.patterns.values import ENTROPY, entropy

SECRETS = frozenset({"API_KEY", "PASSWORD", "JSON_WEB_TOKEN", "PRIVATE_KEY"})
KINDS = frozenset({kernels.TOKEN, kernels.PEM, kernels.USERINFO, kernels.ASSIGNED, kernels.FLAG})

BY_ISSUER, BY_FORM = 0.95, 1.0
_JWT = re.compile(r"eyJ[A-Za-z0-9_\-]{10,4000}\.eyJ[A-Za-z0-9_\-]{10,8000}\.[A-Za-z0-9_\-]{0,2000}(?![A-Za-z0-9_\-])")
# A block without an end line is cut where its base64 ends
_PEM = re.compile(
    r"-{4,5} ?BEGIN (?P<kind>(?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?) ?-{4,5}"
    r"(?:(?:[^-]|-(?!---)){0,16000}?-{4,5} ?END (?P=kind) ?-{4,5}|(?:(?:\s|\\[nr]){0,4}[A-Za-z0-9+/=]{32,76}){1,400})"
)
_BASE64 = re.compile(r"[A-Za-z0-9+/]{32}")
_PLACEHOLDER = re.compile(r"EXAMPLE|x{6}|X{6}|0{8}|\*{4}|1234567890|abcdefghij|(?<![A-Za-z0-9])your[-_]", re.ASCII)
_IDENTIFIER = re.compile(r"(?:[a-z]+|[A-Z]+|[A-Z][a-z]+|\d{1,4})(?:[_\-](?:[a-z]+|[A-Z]+|[A-Z][a-z]+|\d{1,4}))*")


def find_secrets(text: str, candidates: Iterable[Candidate]) -> Iterator[Finding]:
    """Yield the secrets in a text. If two findings overlap, only the surer one."""
    surest_first = sorted(
        _all(text, candidates), key=lambda finding: (-finding.score, finding.start - finding.end, finding.start)
    )
    taken: list[Finding] = []
    for finding in surest_first:
        if all(finding.end <= other.start or other.end <= finding.start for other in taken[-50:]):
            taken.append(finding)
            yield finding


def _all(text: str, candidates: Iterable[Candidate]) -> Iterator[Finding]:
    for kind, start, end in candidates:
        if kind == kernels.TOKEN:
            finding = _token(text, start, end)
        elif kind == kernels.ASSIGNED:
            finding = assigned_at(text, start, end)
        elif kind == kernels.FLAG:
            finding = flag_at(text, start, end)
        elif kind == kernels.USERINFO:
            finding = userinfo_at(text, start)
        else:
            finding = _pem(text, start)
        if finding is not None:
            yield finding


def _token(text: str, start: int, end: int) -> Finding | None:
    if text.startswith("eyJ", start):
        match = _JWT.match(text, start)
        return Finding("JSON_WEB_TOKEN", *match.span(), BY_FORM) if match else None
    secret = secret_at(text, start, end)
    if secret is None:
        return bearer_at(text, start, end)
    issuer, first, last = secret
    value = text[first:last]
    if entropy(value) < ENTROPY or _PLACEHOLDER.search(value):
        return None
    if _IDENTIFIER.fullmatch(value) and issuer != "AWS access key":  # which may consist of only letters
        return None
    return Finding("API_KEY", first, last, BY_ISSUER)


def _pem(text: str, at: int) -> Finding | None:
    start = at
    while start and text[start - 1] in " -" and at - start < 6:
        start -= 1
    matches = (_PEM.match(text, first, at + 17_000) for first in range(start, at + 1))
    match = next(filter(None, matches), None)
    if match is None or not _BASE64.search(match[0]):
        return None
    return Finding("PRIVATE_KEY", *match.span(), BY_FORM)
