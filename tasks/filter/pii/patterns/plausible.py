"""False positives: rules that Presidio's recognisers lack, and words that must precede a finding.

Presidio takes many a table row for a telephone number, a version for an IP address, the decimals of a fraction for a
card number. And plain digits (any nine can be an Australian tax file number) are personal data only where the text says
so.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Mapping

from tasks.filter.pii.findings import Finding

REACH = 60  # characters before a finding that must include a word that says what it is
NEAR = 30  # the same for telephone numbers and IP addresses

# Evidence for a telephone number beyond Presidio's numbering plans: a word beside it, or its format
DIALLED = re.compile(
    r"\b(?:tel|phone|telephone|call|fax|mobile|cell|cellphone|hotline|whatsapp|answering at|reach \w+ (?:at|on))\b",
    re.IGNORECASE,
)
DIALLED_AFTER = re.compile(r"[ \-(]{0,2}(?:office|fax|mobile|cell|home|tel|phone)\b", re.IGNORECASE)
NATIONAL = re.compile(
    r"(?:\(\d{3}\) ?\d{3}[-. ]\d{4}|\((?!(?:1[89]|20)\d\d\))\d{2,5}\) ?\d{3,5}[- ]\d{3,4}|\d{3}([-.])\d{3}\1\d{4}"
    r"|0\d{1,4}(?: \d{2,4}){2,5}|0[1-9]\d{0,3}[-/]\d{5,8}|0[1-9]\d{1,3} \d{6,8}|00\d(?:-\d{3,4}){3})"
    r"(?:x\d+)?"
)
_SHORTEST, _SHORTEST_DIALLED = 7, 6  # digits of a telephone number; with a word that says that it is one
_VERSION_BEFORE = re.compile(
    r"(?:\b(?:v|vers?|versions?|releases?|rev|revision|build|firmware|section|chapter)\.?(?: (?:after|before|than))?"
    r"|[=<>~!^§])\s?[:=]?\s?\Z|[\w.\-]\Z",
    re.IGNORECASE,
)

DIAL_WORDS = frozenset(  # every match of DIALLED has one of these
    (
        "tel",
        "phone",
        "telephone",
        "call",
        "fax",
        "mobile",
        "cell",
        "cellphone",
        "hotline",
        "whatsapp",
        "answering",
        "reach",
    )
)
_WORD = re.compile(r"\w+")

# Words that must precede a finding: Presidio's own, without those that are common English words
CONTEXT: Mapping[str, tuple[str, ...]] = {
    "US_ITIN": ("itin", "individual taxpayer", "taxpayer identification", "tax id", "taxid"),
    "UK_NHS": ("nhs", "national health service", "health authority", "health services authority"),
    "UK_NINO": ("nino", "national insurance", "ni number", "ni no"),
    "ES_NIF": ("nif", "dni", "documento nacional de identidad", "identificación"),
    "PL_PESEL": ("pesel",),
    "DE_TAX_ID": ("steuer-id", "steuerid", "idnr", "steuer-idnr", "steuernummer", "steueridentifikationsnummer",
                  "steuerliche identifikationsnummer", "persönliche identifikationsnummer"),
    "SG_NRIC_FIN": ("nric", "fin", "identity card", "nric/fin"),
    "IN_PAN": ("pan", "permanent account number", "income tax"),
    "IN_AADHAAR": ("aadhaar", "aadhar", "uidai"),
    "AU_TFN": ("tfn", "tax file number"),
    "AU_ABN": ("abn", "australian business number"),
    "CA_SIN": ("sin number", "sin no", "social insurance", "assurance sociale", "canadian sin"),
    "KR_RRN": ("rrn", "resident registration"),
}  # fmt: skip
# The same for the weak patterns of a recogniser that has strong ones
WEAK_CONTEXT: Mapping[str, tuple[str, ...]] = {"US_SSN": ("ssn", "ssns", "social security", "social", "ssid")}
STRONG = 0.4  # score from which a pattern needs no word
_BOOST = 0.35  # added to the score of a weak pattern by a word, as in Presidio's context enhancer


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
    """The words of a text in lower case, with the word boundaries of the patterns here."""
    return _WORD.findall(text.lower())


def judged(text: str, finding: Finding) -> Finding | None:
    """The finding with its score adjusted to the surrounding text, or None for a false positive."""
    judge = _JUDGES.get(finding.entity)
    if judge is not None:
        return finding if judge(text, finding) else None
    if finding.entity in CONTEXT:
        return finding._replace(score=_raised(finding.score)) if _said(text, finding) else None
    if finding.entity in WEAK_CONTEXT and finding.score < STRONG:
        return finding._replace(score=_raised(finding.score)) if _said(text, finding) else None
    return finding


def _said(text: str, finding: Finding) -> bool:
    return says(finding.entity).search(text, max(finding.start - REACH, 0), finding.start) is not None


def _raised(score: float) -> float:
    return round(min(max(score + _BOOST, STRONG), 1.0), 3)


def _is_address(text: str, finding: Finding) -> bool:
    before, after = text[max(finding.start - NEAR, 0) : finding.start], text[finding.end : finding.end + 2]
    is_version = _VERSION_BEFORE.search(before) or re.match(r"[.\-+]\w|\w", after)
    return not is_version and _is_public(text[finding.start : finding.end])


def _is_public(value: str) -> bool:
    """Whether it can identify a person: loopback, private and reserved networks can't, nor can a word with `::`."""
    if ":" in value and "." not in value and (len(re.findall(r"\w+", value)) < 3 or not re.search(r"\d", value)):
        return False
    return ipaddress.ip_interface(value.partition("%")[0]).ip.is_global


def _is_phone(text: str, finding: Finding) -> bool:
    value = text[finding.start : finding.end]
    before, after = text[max(finding.start - NEAR, 0) : finding.start], text[finding.end : finding.end + NEAR]
    if re.search(r"[\w./@\-]\Z", before) or re.match(r"[./:\-]?\d", after):
        return False
    digits = sum(character.isdigit() for character in value)
    if DIALLED.search(before) or DIALLED_AFTER.match(after):
        return digits >= _SHORTEST_DIALLED
    return digits >= _SHORTEST and (value.startswith("+") or NATIONAL.fullmatch(value) is not None)


def _is_card(text: str, finding: Finding) -> bool:
    """Not the decimals of a fraction, nor a part of a longer number."""
    before, after = text[max(finding.start - 2, 0) : finding.start], text[finding.end : finding.end + 2]
    return not re.search(r"\d[.,\-]\Z|(?:\W|^)\.\Z", before) and not re.match(r"[.,\-]\d", after)


def _is_lone_word(text: str, finding: Finding) -> bool:
    """Not cut out of a longer run of letters and digits, such as a hash or a file's name."""
    before, after = text[max(finding.start - 1, 0) : finding.start], text[finding.end : finding.end + 2]
    return not re.search(r"[\w/.\-]\Z", before) and not re.match(r"\w|[.\-/]\w", after)


def _any_of(words: set[str]) -> re.Pattern[str]:
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, longest_first))})\b", re.IGNORECASE)


def _is_pan(text: str, finding: Finding) -> bool:
    """Five letters, four digits, a letter, and a word that says so: Presidio's weakest pattern takes any ten."""
    value = text[finding.start : finding.end]
    return re.fullmatch(r"[A-Za-z]{5}\d{4}[A-Za-z]", value) is not None and _said(text, finding)


_JUDGES = {
    "IP_ADDRESS": _is_address,
    "PHONE_NUMBER": _is_phone,
    "CREDIT_CARD": _is_card,
    "CRYPTO": _is_lone_word,
    "IT_FISCAL_CODE": _is_lone_word,
    "FI_PERSONAL_IDENTITY_CODE": _is_lone_word,
    "IN_PAN": _is_pan,
}
