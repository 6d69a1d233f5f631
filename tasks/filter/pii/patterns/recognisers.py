"""Presidio's recognisers, one per entity: patterns and checksums, no language model, no network.

Presidio has none for keys and tokens; ours are PatternRecognizers as well, with the prefixes that issuers document for
scanners. National IDs are those that Presidio validates by a checksum or a strict form; the one whose recogniser
depends on the date (South Africa) is left out, since the same text must give the same findings.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tasks.filter.pii.absent import without_torch

if TYPE_CHECKING:
    from presidio_analyzer import EntityRecognizer

ENTROPY = 3.0  # bits per character: 16 random letters and digits have 3.6 on average, words joined by _ 2.5 to 3.3

_KEY_PATTERNS = {
    "AWS access key": (r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b", 0.9),
    "GitHub token": (r"\b(?:gh[pousr]_[A-Za-z0-9]{36,251}|github_pat_[A-Za-z0-9_]{82})\b", 0.95),
    "GitLab token": (r"\bgl(?:pat|dt|ptt|soat|rt|cbt|ft)-[A-Za-z0-9_\-]{20,64}", 0.95),
    "Slack token": (r"\bxox[abeoprs]-[A-Za-z0-9-]{10,200}", 0.95),
    "Stripe key": (r"\b(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,247}\b", 0.95),
    "Google API key": (r"\bAIza[A-Za-z0-9_\-]{35}(?![A-Za-z0-9_\-])", 0.95),
    "sk- key": (r"\bsk-(?:proj-|ant-|svcacct-|or-v1-)?[A-Za-z0-9_\-]{32,200}(?![A-Za-z0-9_\-])", 0.8),
    "Hugging Face token": (r"\bhf_[A-Za-z0-9]{34,40}\b", 0.9),
    "npm or PyPI token": (r"\b(?:npm_[A-Za-z0-9]{36}\b|pypi-AgE[A-Za-z0-9_\-]{50,250})", 0.95),
}
# A value without a known prefix: recognised by the name that it is assigned to and by its randomness
ASSIGNED = (
    r"(?:api|secret|access|auth|private|client|encryption)[_\-]?(?:key|token|secret)|token|secret|passwd|password"
)
_ASSIGNED_KEY = (
    rf"(?<=(?:{ASSIGNED})(?:[_\-]?id)?[\"']?\s{{0,3}}(?:=|:|=>|:=)\s{{0,3}}[\"'])[A-Za-z0-9_\-+/=.~]{{16,200}}(?=[\"'])"
)
_CERTAIN = 0.75
_WORDS = re.compile(r"(?:[A-Za-z]+|\d+)(?:[_\-./](?:[A-Za-z]+|\d+))*")  # an identifier is not random


@functools.cache
def recognisers() -> Mapping[str, EntityRecognizer]:
    """The recogniser of every entity with a fixed form, by Presidio's name. Loaded once per process (about 1 s)."""
    with without_torch():
        from presidio_analyzer import Pattern, PatternRecognizer, predefined_recognizers
    from tldextract import TLDExtract

    domains = TLDExtract(suffix_list_urls=(), cache_dir=None)  # the list that comes with it: nothing is downloaded

    class OfflineEmailRecognizer(predefined_recognizers.EmailRecognizer):
        """Presidio's, with a list of domains on disk."""

        def validate_result(self, pattern_text: str) -> bool:
            return bool(domains(pattern_text.rpartition("@")[2]).top_domain_under_public_suffix)

    class KeyRecognizer(PatternRecognizer):
        """Keys by their issuers' prefixes, and random values assigned to the name of a key."""

        def invalidate_result(self, pattern_text: str) -> bool:
            return entropy(pattern_text) < ENTROPY or _WORDS.fullmatch(pattern_text) is not None

    class PemRecognizer(PatternRecognizer):
        """A PEM block with a key in it, not dots in its place."""

        def invalidate_result(self, pattern_text: str) -> bool:
            return not _BASE64.search(pattern_text)

    keys = [Pattern(name, regex, score) for name, (regex, score) in _KEY_PATTERNS.items()]
    keys.append(Pattern("assigned key", rf"(?i:{_ASSIGNED_KEY})", _CERTAIN))
    found: dict[str, EntityRecognizer] = {
        "EMAIL_ADDRESS": OfflineEmailRecognizer(),
        "API_KEY": KeyRecognizer("API_KEY", patterns=keys, global_regex_flags=0),
        "JSON_WEB_TOKEN": PatternRecognizer(
            "JSON_WEB_TOKEN", patterns=[Pattern("JWT", JWT, 0.95)], global_regex_flags=0
        ),
        "PRIVATE_KEY": PemRecognizer("PRIVATE_KEY", patterns=[Pattern("PEM", PEM_BLOCK, 1.0)], global_regex_flags=0),
    }
    for entity, name in _PRESIDIO.items():
        found[entity] = getattr(predefined_recognizers, name)()
    flags = (
        re.DOTALL | re.MULTILINE | re.IGNORECASE
    )  # as Presidio's registry sets them: IBANs are also written in lower case
    found["IBAN_CODE"] = predefined_recognizers.IbanRecognizer(regex_flags=flags)
    return found


JWT = r"\beyJ[A-Za-z0-9_\-]{10,4000}\.eyJ[A-Za-z0-9_\-]{10,8000}\.[A-Za-z0-9_\-]{10,2000}(?![A-Za-z0-9_\-])"
# A block without its end is cut where its base64 ends
PEM_BLOCK = (
    r"-----BEGIN (?P<kind>(?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?)-----"
    r"(?:(?:[^-]|-(?!-)){0,16000}?-----END (?P=kind)-----|(?:(?:\s|\\[nr]){0,4}[A-Za-z0-9+/=]{32,76}){1,400})"
)
PEM_LENGTH = 17_000
_BASE64 = re.compile(r"[A-Za-z0-9+/]{32}")

_PRESIDIO = {
    "PHONE_NUMBER": "PhoneRecognizer",
    "IP_ADDRESS": "IpRecognizer",
    "MAC_ADDRESS": "MacAddressRecognizer",
    "CREDIT_CARD": "CreditCardRecognizer",
    "CRYPTO": "CryptoRecognizer",
    "US_SSN": "UsSsnRecognizer",
    "US_ITIN": "UsItinRecognizer",
    "UK_NHS": "NhsRecognizer",
    "UK_NINO": "UkNinoRecognizer",
    "ES_NIF": "EsNifRecognizer",
    "ES_NIE": "EsNieRecognizer",
    "IT_FISCAL_CODE": "ItFiscalCodeRecognizer",
    "FI_PERSONAL_IDENTITY_CODE": "FiPersonalIdentityCodeRecognizer",
    "PL_PESEL": "PlPeselRecognizer",
    "DE_TAX_ID": "DeTaxIdRecognizer",
    "SG_NRIC_FIN": "SgFinRecognizer",
    "IN_PAN": "InPanRecognizer",
    "IN_AADHAAR": "InAadhaarRecognizer",
    "AU_TFN": "AuTfnRecognizer",
    "AU_ABN": "AuAbnRecognizer",
    "CA_SIN": "CaSinRecognizer",
    "KR_RRN": "KrRrnRecognizer",
}


def entropy(value: str) -> float:
    """Shannon entropy of a text's characters, in bits per character; 0 for an empty text."""
    counts = Counter(value).values()
    return -sum(count / len(value) * math.log2(count / len(value)) for count in counts)
