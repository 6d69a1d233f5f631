"""Bank accounts: IBANs of all countries in SWIFT's registry (release 101), by each country's form and the checksum of
ISO 13616.

The form fixes where an IBAN ends, so a word after it is not part of it. Presidio's recogniser takes all groups of four
that follow, words too, and lacks thirteen countries.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping

from tasks.filter.pii.findings import Finding

Span = tuple[int, int]

SURE, SMALL = 1.0, 0.5  # scores: with the country in capitals, and otherwise
# After the country and two check digits: numbers of digits (n), letters (a) and either (c)
FORMS: Mapping[str, str] = {
    "11n": "NO", "12n": "BE", "14n": "DK FI FO GL SD", "2a12n": "FK", "4a10n": "NL", "15n": "SI", "3n10c2n": "MK",
    "16n": "AT BA EE LT MN XK", "3n13c": "KZ LU", "17n": "HR", "4a13c": "LV", "5n12c": "CH LI",
    "18n": "CR DE ME RS VA", "2a16n": "GE", "4a14c": "BH", "4a14n": "GB IE", "4a6n8c": "BG", "19n": "AE IL SO TL",
    "3n16c": "OM", "4a15c": "GI", "4a15n": "IQ", "20c": "MD", "20n": "CZ ES SE SK TN", "2n18c": "SA",
    "4a16c": "PK RO", "4a16n": "VG", "8n12c": "AD", "21n": "LY PT ST", "22n": "IS", "6n16c": "TR",
    "10n11c2n": "FR MC", "1a10n12c": "IT SM", "23n": "BI DJ MR", "7n16c": "GR", "24c": "GT", "24n": "HU PL",
    "4a20c": "AZ", "4a20n": "HN NI SV", "4c20n": "DO", "4c4n16c": "BY", "4n20c": "LB", "8n16c": "AL CY",
    "23n1a1c": "BR", "25n": "EG", "4a21c": "PS QA", "6n19c": "UA", "4a19n3a": "MU", "4a22c": "KW", "4a4n18c": "JO YE",
    "4a20n3a": "SC", "4a5n18c": "MT", "4a24c": "LC", "14n15c": "RU",
}  # fmt: skip
_KINDS = {"n": "[0-9]", "a": "[A-Za-z]", "c": "[A-Za-z0-9]"}
_BETWEEN = r"(?:-|[ \t\xa0]{1,2}|[ \t]?\r?\n[ \t]{0,4})?"  # between groups, where a line may end
_BEGINS = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}[0-9]{2}")


def find_ibans(text: str, spans: Iterable[Span]) -> Iterator[Finding]:
    """Yield the IBANs, grouped or not, that begin in these runs of letters, digits, hyphens and underscores."""
    for start, end in spans:
        for begin in _BEGINS.finditer(text, start, end):
            form = _forms().get(begin[0][:2].upper())
            match = form.match(text, begin.start()) if form else None
            if match is not None and is_valid(match[0]):
                yield Finding("IBAN_CODE", *match.span(), SURE if begin[0].isupper() else SMALL)


def is_valid(iban: str) -> bool:
    """Whether the checksum (ISO/IEC 7064, MOD 97-10) is right, whatever separates the groups."""
    plain = "".join(filter(str.isalnum, iban))
    return int("".join(str(int(sign, 36)) for sign in plain[4:] + plain[:4])) % 97 == 1


@functools.cache
def _forms() -> dict[str, re.Pattern[str]]:
    """The pattern of each country's IBANs, in groups of four or not."""
    by_country: dict[str, re.Pattern[str]] = {}
    for form, countries in FORMS.items():
        kinds = "".join(kind * int(count) for count, kind in re.findall(r"(\d+)([nac])", form))
        signs = ((_BETWEEN if place % 4 == 0 else "") + _KINDS[kind] for place, kind in enumerate(kinds))
        pattern = re.compile(f"[A-Za-z]{{2}}[0-9]{{2}}{''.join(signs)}(?![A-Za-z0-9])")
        by_country |= dict.fromkeys(countries.split(), pattern)
    return by_country
