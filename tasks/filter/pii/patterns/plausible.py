"""False positives: rules that Presidio's recognisers lack, and words that must precede a finding.

Presidio takes a version for an IP address, and a part of a longer id for a social security number. Plain digits (any
nine can be an Australian tax file number) are personal data only if the text says so.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Mapping

from tasks.filter.pii.findings import Finding

REACH = 60  # characters before a finding that must include a word that identifies it
NEAR = 30  # the same for IP addresses

_VERSION_BEFORE = re.compile(
    r"(?:\b(?:v|vers?|versions?|releases?|rev|revision|build|firmware|section|chapter|patch|update|upgrade[ds]?|§)\.?"
    r"(?: (?:after|before|than|to|from))?|[=<>~!^]=|[~^§])\s?[:=]?\s?[\"']?\Z|[.\-]\Z",
    re.IGNORECASE | re.ASCII,
)
# Four small numbers are a version or a section rather than an address, unless a word says otherwise
_ADDRESS_BEFORE = re.compile(
    r"\b(?:ips?|ipv4|ip[- _]?addr(?:ess)?|address(?:es)?|hosts?|servers?|gateway|dns|peer|client|remote|nameserver|ping"
    r"|traceroute|ssh|telnet|logged in from|login from|connect(?:ed|ion)? (?:to|from))\b[^\n]{0,20}\Z|://\Z",
    re.IGNORECASE | re.ASCII,
)
_SMALL, _LARGE = 32, 100
_RESOLVERS = frozenset(  # widely known, so nobody's own
    {
        "8.8.8.8",
        "8.8.4.4",
        "1.1.1.1",
        "1.0.0.1",
        "9.9.9.9",
        "149.112.112.112",
        "208.67.222.222",
        "208.67.220.220",
        "4.2.2.1",
        "4.2.2.2",
        "1.2.3.4",
        "5.6.7.8",
        "1.1.1.2",
        "2.2.2.2",
        "3.3.3.3",
        "4.4.4.4",
        "4.3.2.1",
        "1.2.3.0",
        "2001:4860:4860::8888",
        "2001:4860:4860::8844",
        "2606:4700:4700::1111",
        "2606:4700:4700::1001",
    }
)

_WORD = re.compile(r"\w+", re.ASCII)

# Words that must precede a finding: Presidio's own, without those that are common English words
CONTEXT: Mapping[str, tuple[str, ...]] = {
    "US_ITIN": ("itin", "individual taxpayer", "taxpayer identification", "tax id", "taxid"),
    "UK_NHS": ("nhs", "national health service", "health authority", "health services authority"),
    "UK_NINO": ("nino", "national insurance", "ni number", "ni no"),
    "ES_NIF": ("nif", "dni", "documento nacional de identidad", "identificación"),
    "PL_PESEL": ("pesel",),
    "DE_TAX_ID": (
        "steuer-id",
        "steuerid",
        "idnr",
        "steuer-idnr",
        "steuernummer",
        "steueridentifikationsnummer",
        "steuerliche identifikationsnummer",
        "persönliche identifikationsnummer",
    ),
    "SG_NRIC_FIN": ("nric", "fin", "identity card", "nric/fin"),
    "IN_PAN": ("pan", "permanent account number", "income tax"),
    "IN_AADHAAR": ("aadhaar", "aadhar", "uidai"),
    "AU_TFN": ("tfn", "tax file number"),
    "AU_ABN": ("abn", "australian business number"),
    "CA_SIN": ("sin number", "sin no", "social insurance", "assurance sociale", "canadian sin", "SIN"),
    "KR_RRN": ("rrn", "resident registration"),
}
# The same for the weak patterns of a recogniser that also has strong ones
WEAK_CONTEXT: Mapping[str, tuple[str, ...]] = {"US_SSN": ("ssn", "ssns", "social security", "social", "ssid")}
STRONG = 0.4  # minimum score of a pattern that doesn't need a word
_BOOST = 0.35  # added by a word to a weak pattern's score, as in Presidio's context enhancer


@functools.cache
def says(entity: str) -> re.Pattern[str]:
    """A pattern for the words that announce an entity."""
    return _any_of({*CONTEXT.get(entity, ()), *WEAK_CONTEXT.get(entity, ())})


@functools.cache
def first_words() -> frozenset[str]:
    """The first words of all phrases in says(entity), in lower case, for a quick test against a set of words."""
    phrases = (phrase for table in (CONTEXT, WEAK_CONTEXT) for phrases in table.values() for phrase in phrases)
    return frozenset(words(phrase)[0] for phrase in phrases)


def words(text: str) -> list[str]:
    """The words of a text in lower case, with the word boundaries of the patterns here: letters beyond ASCII separate
    words, as in `NHS号`."""
    return _WORD.findall(text.lower())


def continues(text: str, place: int) -> bool:
    """Whether the character at `place` would be part of a number or code beside it: an ASCII letter, a digit or an
    underscore. Other letters would not, because many scripts don't put a space before a number."""
    sign = text[place : place + 1] if place >= 0 else ""
    return sign.isascii() and (sign.isalnum() or sign == "_")


def judged(text: str, finding: Finding) -> Finding | None:
    """The finding with its score adjusted to the surrounding text, or None for a false positive."""
    if continues(text, finding.start - 1) or continues(text, finding.end):
        return None
    if finding.entity == "US_SSN":
        return _is_ssn(text, finding)
    judge = _JUDGES.get(finding.entity)
    if judge is not None:
        return finding if judge(text, finding) else None
    if finding.entity in CONTEXT:
        return finding._replace(score=_raised(finding.score)) if _said(text, finding) else None
    return finding


def _said(text: str, finding: Finding) -> bool:
    return says(finding.entity).search(text, max(finding.start - REACH, 0), finding.start) is not None


def _raised(score: float) -> float:
    return round(min(max(score + _BOOST, STRONG), 1.0), 3)


def _is_address(text: str, finding: Finding) -> bool:
    value = text[finding.start : finding.end]
    before, after = text[max(finding.start - NEAR, 0) : finding.start], text[finding.end : finding.end + 2]
    if _VERSION_BEFORE.search(before) or re.match(r"[.\-+]\w", after, re.ASCII) or value in _RESOLVERS:
        return False
    if "." in value and ":" not in value:
        parts = [int(part) for part in value.partition("/")[0].split(".")]
        small = [part < _SMALL for part in parts]
        like_version = (sum(small) >= 3 and max(parts) < _LARGE) or (parts[0] < 3 and small[1])  # an OID too
        if like_version and not _ADDRESS_BEFORE.search(before):
            return False
    return _is_public(value)


def _is_public(value: str) -> bool:
    """Whether an address can identify a person. Loopback, private and reserved networks can't, nor a word with `::`."""
    if value.endswith("::"):
        return False
    if ":" in value and "." not in value and (len(re.findall(r"\w+", value)) < 3 or not re.search(r"\d", value)):
        return False
    address = ipaddress.ip_interface(value.partition("%")[0]).ip
    return address.is_global and not address.is_multicast


def _is_ssn(text: str, finding: Finding) -> Finding | None:
    """The finding unless it is part of a longer id. Digits without separators, or with dots or spaces, need a word
    before them."""
    value = text[finding.start : finding.end]
    before, after = text[max(finding.start - 2, 0) : finding.start], text[finding.end : finding.end + 2]
    if re.search(r"[./\-+#]\Z", before) or re.match(r"[-./+]\w", after, re.ASCII):
        return None
    if value.count("-") == 2 and finding.score >= STRONG and value[0] != "9":
        return finding
    return finding._replace(score=_raised(min(finding.score, STRONG))) if _said(text, finding) else None


def _is_lone_word(text: str, finding: Finding) -> bool:
    """Whether a finding is not cut out of a longer run of letters and digits, such as a hash or a file name."""
    before, after = text[max(finding.start - 1, 0) : finding.start], text[finding.end : finding.end + 2]
    return not re.search(r"[/.\-]\Z", before) and not re.match(r"[.\-/]\w", after, re.ASCII)


def _any_of(words: set[str]) -> re.Pattern[str]:
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    patterns = (f"(?-i:{word})" if word.isupper() else re.escape(word) for word in longest_first)  # SIN is not sin
    return re.compile(rf"(?<![A-Za-z0-9_])(?:{'|'.join(patterns)})(?![A-Za-z0-9_])", re.IGNORECASE)


def _is_pan(text: str, finding: Finding) -> bool:
    """Whether a finding is five letters, four digits, a letter, and has a word that identifies it: Presidio's weakest
    pattern takes any ten."""
    value = text[finding.start : finding.end]
    return re.fullmatch(r"[A-Za-z]{5}\d{4}[A-Za-z]", value) is not None and _said(text, finding)


_JUDGES = {
    "IP_ADDRESS": _is_address,
    "CRYPTO": _is_lone_word,
    "IT_FISCAL_CODE": _is_lone_word,
    "FI_PERSONAL_IDENTITY_CODE": _is_lone_word,
    "IN_PAN": _is_pan,
}
