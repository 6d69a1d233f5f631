"""Tests of a value for secrets: as random as a key, or a chosen password, and neither code nor a placeholder."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import Counter
from urllib.parse import unquote

ENTROPY = 3.0  # bits per character: 16 random letters and digits have 3.6 on average, words joined by _ 2.5 to 3.3
PASSWORD_ENTROPY = 2.5  # eight characters have at most 3.0
LONG = 40  # characters of a value in which some letters form a word by chance

_WORDS = re.compile(r"(?:[A-Za-z]+|\d+)(?:[_\-./:](?:[A-Za-z]+|\d+))*")  # an identifier, a version, a path: not random
_PLACEHOLDER = re.compile(
    r"x{4,}|\*{3,}|\.{3,}|-{4,}|your|change|example|sample|placeholder|replace|redacted|dummy|insert|\$\{|\{\{|%\(|%s|secret"
    r"|passw|token|1234567|abcdef|qwerty|foobar|hunter2\Z|test|fake|mock|todo|enter|lorem|(.)\1{5}|\bnull|\bnone|environ"
    r"|deadbeef|cafebabe|0123456",
    re.IGNORECASE,
)
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
_TYPE = re.compile(r"(?:[A-Z][a-z]+\d{0,2}){2,}[A-Z]?")
_OPERATORS = re.compile(r"[=!<>]=|&&|\|\||::|[-=]>|\?\.|\w\?\w.*:|\+\+|^[$&*?|:=+/]")
_URL = re.compile(r"[a-z][a-z0-9+.\-]*://|[A-Za-z]:[\\/]|@?/[\w\-./]*\Z|@?~/|@?\./", re.IGNORECASE)
_TEMPLATE = re.compile(
    r"[<{}\[\]$%*()…]|\.\.\.|^(?:pass(?:word|wd|phrase)?|pwd|pw|secret|token|api_?key|key|x+|user(?:name)?)$",
    re.IGNORECASE,
)
_FAKE = re.compile(
    r"(?:my|your|the|some|a)?[-_]?(?:pass(?:word|wd)?|pwd|pw|secret|token)\d{0,4}|user\d?|guest|tiger|admin|root|postgres|test"
    r"|open ?sesame",
    re.IGNORECASE,
)

_VARIABLE = re.compile(  # secret_access_key, secretAccessKey
    r"(?:[A-Za-z]+[_\-])+(?i:key|id|secret|token|pass(?:word|wd|phrase)?|pwd)"
    r"|[a-z]+(?:[A-Z][a-z]+)*(?:Key|Secret|Token|Password)"
)
_PERCENT = re.compile(r"%[0-9A-Fa-f]{2}")
_FILLED_IN = re.compile(r"[<{\[(].*[>}\])]|\A\$")  # <password>, {{password}}, $PASSWORD


def is_random(value: str, least_digits: int = 2) -> bool:
    """Whether a value is as random as a generated key."""
    if entropy(value) < ENTROPY or _WORDS.fullmatch(value) or is_placeholder(value) or _URL.match(value):
        return bool(_UUID.fullmatch(value)) and entropy(value) >= ENTROPY
    if (
        re.fullmatch(r"[0-9a-f]{16}", value)
        or _CODE.fullmatch(value)
        or _PUBLISHED.match(value)
        or not re.search(r"\d", value)
    ):
        return False
    digits, letters = len(re.findall(r"\d", value)), len(re.findall(r"[A-Za-z]", value))
    spelled = len(_SPELLED.findall(value))
    return letters >= 2 and (digits >= least_digits or len(value) < 24) and spelled < 2 + len(value) // LONG


def is_password(value: str) -> bool:
    """Whether a value is a password that somebody chose: three kinds of characters, and not a placeholder."""
    if (
        len(value) > 64
        or is_placeholder(value)
        or _CODE.fullmatch(value)
        or _URL.match(value)
        or _PUBLISHED.match(value)
    ):
        return False
    kinds = sum(bool(re.search(kind, value)) for kind in ("[a-z]", "[A-Z]", r"\d", r"[^A-Za-z0-9_.\-/:]"))
    return entropy(value) >= PASSWORD_ENTROPY and (kinds >= 3 or (kinds == 2 and len(value) >= 12 and is_random(value)))


def is_placeholder(value: str) -> bool:
    """Whether a value stands for another one. A short word in a long value is chance."""
    word = _PLACEHOLDER.search(value)
    return word is not None and (len(value) < LONG or not word[0].isalnum() or len(word[0]) > 4)


def is_code(value: str) -> bool:
    """Whether an unquoted value is an expression."""
    return _OPERATORS.search(value) is not None or _TYPE.fullmatch(value) is not None


def is_login(user: str, password: str) -> bool:
    """Whether a user and a password are somebody's, and not an example's."""
    return not (
        _TEMPLATE.search(password)
        or _FAKE.fullmatch(password)
        or _VARIABLE.fullmatch(password)
        or password == user
        or (_TEMPLATE.search(user) and "$" in user)
    )


def is_login_in_url(user: str, password: str) -> bool:
    """Like `is_login`, but signs of the password may be escaped as in a URL."""
    plain = unquote(password)
    if plain == password:
        return is_login(user, password)
    # Escaped signs of a template don't count, unless they enclose a name
    escaped = _PERCENT.sub("_", password)
    return is_login(user, escaped) and not (_FILLED_IN.search(plain) or _FAKE.fullmatch(plain))


def is_basic(value: str) -> bool:
    """Whether a value is HTTP basic authentication: user and password in base64."""
    if not re.fullmatch(r"[A-Za-z0-9+/]{8,}={0,2}", value) or entropy(value) < PASSWORD_ENTROPY:
        return False
    try:
        user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        user = colon = password = ""
    if colon and (user + password).isprintable():
        return is_login(user, password)
    return len(value) >= 16 and re.search(r"\d|=", value) is not None


def entropy(value: str) -> float:
    """Shannon entropy of a text's characters, in bits per character, or 0 for an empty text."""
    counts = Counter(value).values()
    return -sum(count / len(value) * math.log2(count / len(value)) for count in counts)
