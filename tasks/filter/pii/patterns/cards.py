"""Payment cards: the ranges of issuers' numbers (ISO/IEC 7812), their lengths, and Luhn's checksum.

Presidio's recogniser knows four issuers and at most sixteen digits. A tenth of all numbers has a right checksum, so a
run of digits that isn't a usual card needs a word that identifies it: a Maestro or Visa number of 19 digits may as well
be a 64-bit id. Numbers that processors publish for tests are nobody's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tasks.filter.pii.findings import Finding

Span = tuple[int, int]

SURE, SEPARATED = 1.0, 0.9  # scores: usual cards or with a word beside them, and others with separators
_NUMBER = re.compile(
    r"(?<![\w./+-])(?:\d{4}([ -])\d{4}\1\d{4}\1\d{1,4}(?:\1?\d{1,3})?|\d{4}([ -])\d{6}\2\d{4,5}|\d{12,19})"
    r"(?![./-]?\w|,\d{1,2}(?![\d/]))",  # not decimals, but in tables another number or a date may follow a comma
    re.ASCII,
)
_SAYS = re.compile(
    r"\b(?:cards?|credit|debit|visa|master ?card|maestro|amex|american express|discover|diners|jcb|unionpay|mir|rupay"
    r"|cc|ccn|pan|payment|karte|kreditkarte|carte|tarjeta|carta|cart[aã]o|karta|kort|kaart|creditcard)\b"
    r"|[Cc]ard|[Кк]арт|カード|卡",
    re.IGNORECASE,
)
_REACH = 60
_BEHIND = 4  # characters that show whether a number ends

# (lowest prefix, highest prefix, lengths): published by the issuers
RANGES: tuple[tuple[str, str, range], ...] = (
    ("4", "4", range(13, 20, 3)),  # Visa: 13, 16, 19
    ("51", "55", range(16, 17)),
    ("2221", "2720", range(16, 17)),  # Mastercard
    ("34", "34", range(15, 16)),
    ("37", "37", range(15, 16)),  # American Express
    ("300", "305", range(14, 15)),
    ("3095", "3095", range(14, 15)),
    ("36", "36", range(14, 20)),
    ("38", "39", range(14, 20)),  # Diners Club
    ("6011", "6011", range(16, 20)),
    ("644", "649", range(16, 20)),
    ("65", "65", range(16, 20)),  # Discover
    ("3528", "3589", range(16, 20)),  # JCB
    ("62", "62", range(16, 20)),
    ("81", "81", range(16, 20)),  # UnionPay
    ("50", "50", range(12, 20)),
    ("56", "58", range(12, 20)),
    ("63", "63", range(12, 20)),
    ("67", "67", range(12, 20)),
    ("6759", "6759", range(12, 20)),  # Maestro
    ("2200", "2204", range(16, 20)),  # Mir
    ("60", "60", range(16, 17)),
    ("82", "82", range(16, 17)),
    ("508", "508", range(16, 17)),  # RuPay
    ("9792", "9792", range(16, 17)),  # Troy
)
_USUAL = (("4", 16), ("5", 16), ("2", 16), ("3", 15), ("6", 16), ("35", 16))  # cards even without separators
# Published for tests by Stripe, Adyen, Braintree and PayPal. All of 4242 42 is accepted only in test mode
TEST_NUMBERS = frozenset(
    [
        "4111111111111111",
        "4012888888881881",
        "4222222222222",
        "4000056655665556",
        "4917610000000000",
        "4005519200000004",
        "4009348888881881",
        "4500600000000061",
        "4988438843884305",
        "5555555555554444",
        "5105105105105100",
        "5200828282828210",
        "5454545454545454",
        "5500005555555559",
        "2223003122003222",
        "2223000048410010",
        "378282246310005",
        "371449635398431",
        "378734493671000",
        "6011111111111117",
        "6011000990139424",
        "6011000400000000",
        "6011601160116611",
        "30569309025904",
        "38520000023237",
        "36227206271667",
        "36006666333344",
        "3530111333300000",
        "3566002020360505",
        "6200000000000005",
        "6304000000000000",
        "6759649826438453",
        "5019717010103742",
    ]
)


def find_cards(text: str, spans: Iterable[Span]) -> Iterator[Finding]:
    """Yield the card numbers among digits with separators."""
    for start, end in spans:
        if end - start < 12:
            continue
        for match in _NUMBER.finditer(text, start, min(end + _BEHIND, len(text))):
            score = _score(text, *match.span())
            if score:
                yield Finding("CREDIT_CARD", *match.span(), score)


def _score(text: str, start: int, end: int) -> float:
    value = text[start:end]
    digits = value.replace(" ", "").replace("-", "")
    if not luhn(digits) or not issued(digits) or digits in TEST_NUMBERS or digits.startswith("424242"):
        return 0.0
    if len(set(digits)) < 4 or "00000000" in digits:
        return 0.0
    if _SAYS.search(text, max(start - _REACH, 0), min(end + _REACH // 2, len(text))):
        return SURE
    if text[max(start - 1, 0) : start] in ("=", "&", "#"):  # a number in a URL
        return 0.0
    if not value.isdigit() and len(digits) >= 14:
        return SEPARATED
    return SURE if any(digits.startswith(first) and len(digits) == length for first, length in _USUAL) else 0.0


def issued(digits: str) -> bool:
    """Whether an issuer's numbers have this beginning and length."""
    return any(low <= digits[: len(low)] <= high and len(digits) in lengths for low, high, lengths in RANGES)


def luhn(digits: str) -> bool:
    """Whether the checksum (ISO/IEC 7812-1, annex B) is right."""
    doubled = (int(digit) * (1 + i % 2) for i, digit in enumerate(reversed(digits)))
    return sum(number // 10 + number % 10 for number in doubled) % 10 == 0
