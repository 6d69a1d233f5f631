"""Secrets without a known form: a random value behind a name that says what it is, and passwords in URLs.

Names are those of shells, YAML, JSON, TOML, INI files and HTTP headers, with or without quotes: `export X_TOKEN=…`,
`password: …`, `"client_secret": "…"`, `Authorization: Bearer …`. A value is a secret when it is as random as one: code
(`token = self.next()`), words (`correct-horse`), placeholders (`<your key>`, `${TOKEN}`) and hashes that are published
are none.
"""

from __future__ import annotations

import math
import re
from collections import Counter

from tasks.filter.pii.findings import Finding

ENTROPY = 3.0  # bits per character: 16 random letters and digits have 3.6 on average, words joined by _ 2.5 to 3.3
PASSWORD_ENTROPY = 2.5  # of eight characters, 3.0 is the most
SURE, LIKELY = 0.75, 0.6

_KEY = (
    r"(?:(?:api|app|secret|access|auth|private|client|encryption|signing|account|service|master|shared|storage|webhook"
    r"|deploy|license|consumer|admin|stripe|aws|gcp|azure|openai|anthropic|github|gitlab|twilio|sendgrid|mailgun|heroku"
    r"|datadog|dd|algolia|cloudflare|session|jwt|hmac|rest|write|maps|google|user)[_.\- ]?keys?(?:[_.\-]?id)?"
    r"|tokens?|secrets?|secret[_.\-]?(?:key|token|access[_.\-]?key)|credentials?|authorization"
    r"|client[_.\-]?secret(?:[_.\-]?id)?"
    r"|(?:\w+[_\-])?auth|creds?|accountkey|sharedaccesskey|private_key_id)"
)
_PASSWORD = r"(?:pass(?:wd|word|phrase|code)?|pwd|passw)"
_END = r"(?:[_.\-]?(?:\d{1,2}|prod|production|live|dev|staging|test|default|value|env|b64|base64))?"
_ASSIGNMENT = re.compile(
    rf"""(?P<name>[\w.\-]*?(?:(?P<key>{_KEY})|(?P<pass>{_PASSWORD})){_END})\\?["'\]]{{0,3}}
    \ {{0,3}}(?:=>|:{{0,3}}=|\?=|==|:)[ \t]{{0,12}}
    (?P<scheme>(?:\\?["'])?(?:bearer|basic|token|apikey|digest)[ ]+)?(?P<quote>\\?["'])?
    (?P<value>[A-Za-z0-9_\-+/=.~!@\#$%^&*?|:]{{8,400}})(?P<after>.|\Z)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_WORDS = re.compile(r"(?:[A-Za-z]+|\d+)(?:[_\-./:](?:[A-Za-z]+|\d+))*")  # an identifier, a version, a path: not random
_PLACEHOLDER = re.compile(
    r"x{4,}|\*{3,}|\.{3,}|-{4,}|your|change|example|sample|placeholder|replace|redacted|dummy|insert|\$\{|\{\{|%\(|%s|secret"
    r"|passw|token|1234567|abcdef|qwerty|foobar|hunter2|test|fake|mock|todo|enter|lorem|(.)\1{5}|\bnull|\bnone|environ"
    r"|deadbeef|cafebabe|0123456",
    re.IGNORECASE,
)
_TURNS = re.compile(r"[A-Za-z](?=\d)|\d(?=[A-Za-z])")  # `PKCS7KeyTypes` has two, a key many
_SPELLED = re.compile(r"[a-z]{6,}|[A-Z]{7,}|[A-Z][a-z]{5,}")
_PUBLISHED = re.compile(
    r"(?:sha\d{1,3}|md5)[-:]|\d{4}-\d\d-\d\d|ssh-|AAAA[BCE]3Nza|.*\.(?:whl|tar|t?gz|zip|py|js|ts|json|ya?ml|toml|txt|md|html?|css"
    r"|png|jpe?g|gif|svg|so|dll|exe|jar|pem|key|crt|cer|pub|cfg|ini|conf|xml|csv|log|sql|db)\Z",
    re.IGNORECASE,
)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_CODE = re.compile(
    r"[A-Za-z_]+\d?(?:\.[A-Za-z_]+\d?)+|[a-z]+(?:[A-Z][a-z]+)+\d{0,2}|[A-Z]+(?:_[A-Z0-9]+)+|\$\w+|@\w+|%\w+%?"
)
_URL = re.compile(r"[a-z][a-z0-9+.\-]*://|/[\w\-./]*\Z|~/|\./", re.IGNORECASE)
_USERINFO = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.\-]{1,20})://(?P<user>[^\s:/@\"'<>`]{0,80}):(?P<password>[^\s/@\"'<>`]{3,120}|[^\s@\"'<>`]{3,120})\Z",
    re.IGNORECASE,
)
_TEMPLATE = re.compile(
    r"[<{}\[\]$%*()…]|\.\.\.|^(?:pass(?:word|wd|phrase)?|pwd|pw|secret|token|api_?key|key|x+|user(?:name)?)$",
    re.IGNORECASE,
)
_FAKE = re.compile(
    r"(?:my|your|the|some|a)?[-_]?(?:pass(?:word|wd)?|pwd|pw|secret|token)\d{0,4}|user\d?|guest|tiger|admin|root|postgres|test",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(?:bearer|basic) {1,2}\Z", re.IGNORECASE)
_TOKEN = re.compile(r"[A-Za-z0-9_\-+/.~]{16,400}={0,2}")


def assigned_at(text: str, start: int, end: int) -> Finding | None:
    """The secret that is the value of the assignment which begins at `start` and ends about `end`."""
    match = _ASSIGNMENT.match(text, start, min(end + 400, len(text)))
    if match is None:
        return None
    first, last = match.span("value")
    quote, after = match["quote"], match["after"]
    value = match["value"]
    if quote:
        if after not in ('"', "'", "\\") and not (match["scheme"] and after.isspace()):
            return None
    else:
        if after and not (after.isspace() or after in ",;\"'`)\\<"):
            return None
        if after == ")" and not match["scheme"]:
            return None
        value = value.rstrip(".,:;?!|")
        last = first + len(value)
    if match["scheme"]:
        random = (len(value) >= 16 and is_random(value)) or (
            match["scheme"].strip().lower().endswith("basic") and _is_base64(value)
        )
        return Finding("API_KEY", first, last, SURE) if random else None
    if "public" in match["name"].lower():
        return None
    if match["pass"]:
        said = bool(quote) or _is_setting(text, match.start())
        return Finding("PASSWORD", first, last, LIKELY) if said and is_password(value) else None
    if "&" in value and not quote:
        value = value.partition("&")[0]
        last = first + len(value)
    long_enough = 16 <= len(value) <= 400
    if not long_enough or not is_random(value) or (not quote and len(_TURNS.findall(value)) < 3):
        return None
    return Finding("API_KEY", first, last, SURE if quote else LIKELY)


def bearer_at(text: str, start: int, end: int) -> Finding | None:
    """The token of an authorization without its header's name: `Bearer …`."""
    if not _BEARER.search(text, max(start - 10, 0), start):
        return None
    match = _TOKEN.match(text, start)
    if match is None or not is_random(match[0].rstrip(".")):
        return None
    return Finding("API_KEY", start, start + len(match[0].rstrip(".")), SURE)


def userinfo_at(text: str, at: int) -> Finding | None:
    """The password of the URL whose user ends at this @."""
    match = _USERINFO.search(text, max(at - 220, 0), at)
    if match is None or (at + 1 < len(text) and not (text[at + 1].isalnum() or text[at + 1] in "[/")):
        return None
    password, user = match["password"], match["user"]
    if (
        _TEMPLATE.search(password)
        or _FAKE.fullmatch(password)
        or password == user
        or (_TEMPLATE.search(user) and "$" in user)
    ):
        return None
    return Finding("PASSWORD", *match.span("password"), SURE)


def is_random(value: str) -> bool:
    """Whether a value is as random as a key is made."""
    if entropy(value) < ENTROPY or _WORDS.fullmatch(value) or _PLACEHOLDER.search(value) or _URL.match(value):
        return bool(_UUID.fullmatch(value)) and entropy(value) >= ENTROPY
    if (
        re.fullmatch(r"[0-9a-f]{16}", value)
        or _CODE.fullmatch(value)
        or _PUBLISHED.match(value)
        or not re.search(r"\d", value)
    ):
        return False
    digits, letters = len(re.findall(r"\d", value)), len(re.findall(r"[A-Za-z]", value))
    return letters >= 2 and (digits >= 2 or len(value) < 24) and len(_SPELLED.findall(value)) < 2


def is_password(value: str) -> bool:
    """Whether a value is a password that somebody chose: three kinds of characters, and no placeholder."""
    if (
        len(value) > 64
        or _PLACEHOLDER.search(value)
        or _CODE.fullmatch(value)
        or _URL.match(value)
        or _PUBLISHED.match(value)
    ):
        return False
    kinds = sum(bool(re.search(kind, value)) for kind in ("[a-z]", "[A-Z]", r"\d", r"[^A-Za-z0-9_.\-/:]"))
    return entropy(value) >= PASSWORD_ENTROPY and (kinds >= 3 or (kinds == 2 and len(value) >= 12 and is_random(value)))


def _is_setting(text: str, start: int) -> bool:
    """Whether a line begins with the name that is at `start`: a setting, not a word in a sentence or in code."""
    line = text[max(text.rfind("\n", 0, start) + 1, start - 80) : start]
    return (
        re.fullmatch(
            r"[\s>#;\-*$]*(?:(?:export|set|setx|ENV|ARG|SET|env:?)\s+)?[\"']?(?:[\w.]+\s+)?(?:--?)?|.*[?&;\s]--?|.*[;&]",
            line,
        )
        is not None
    )


def _is_base64(value: str) -> bool:
    return (
        re.fullmatch(r"[A-Za-z0-9+/]{8,}={0,2}", value) is not None
        and re.search(r"\d|=", value) is not None
        and entropy(value) >= 2.5
    )


def entropy(value: str) -> float:
    """Shannon entropy of a text's characters, in bits per character; 0 for an empty text."""
    counts = Counter(value).values()
    return -sum(count / len(value) * math.log2(count / len(value)) for count in counts)
