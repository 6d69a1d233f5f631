"""Finds passwords and tokens in a release's bytes: by the forms that issuers document, and by name and randomness.

It is a short table instead of a scanner such as detect-secrets, which takes every high-entropy word of a tokenizer for
a secret and reads neither bytes nor the headers of weights. A value after a name such as `password` counts if it looks
random. Each finding can be allowed by the digest of its value.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator

from storage.credentials import LEAST, names_a_secret

SHORTEST = 16  # characters of a value that looks random
_FORMS = (
    rb"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----(?:\s|\\[nr]|[\w-]+: [^\n]{0,200}\n){0,20}"
    rb"[A-Za-z0-9+/=]{32}(?:[A-Za-z0-9+/=\s]|\\[nr])*",
    rb"hf_[A-Za-z0-9]{30,}",
    rb"api_org_[A-Za-z0-9]{30,}",
    *(rb"gh%c_[A-Za-z0-9]{36,}" % kind for kind in b"pousr"),
    rb"github_pat_\w{60,}",
    rb"gl(?:pat|dt|rt|ptt|ft|soat|cbt|agent|oas)-[\w\-]{20,}",
    rb"AIza[\w\-]{35}(?![\w\-])",
    rb"GOCSPX-[\w\-]{28}",
    rb"ya29\.[\w\-]{30,}",
    rb"AKIA[A-Z2-7]{16}(?![A-Za-z0-9+/])",
    rb"ASIA[A-Z2-7]{16}(?![A-Za-z0-9+/])",
    rb"sk-(?:(?:proj|ant|svcacct)-[\w\-]{20,}|[A-Za-z0-9]{32,})",
    rb"sk_live_[A-Za-z0-9]{20,}",
    rb"rk_live_[A-Za-z0-9]{20,}",
    rb"xox[abeoprs]-[\w\-]{10,}",
    rb"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])",
    rb"pypi-AgE[\w\-]{50,}",
    rb"pnu_\w{30,}",
    rb"eyJ[\w\-]{10,}\.eyJ[\w\-]{10,}\.[\w\-]{20,}",  # a JWT with its signature
    rb"AccountKey=([\w+/=]{20,})",
    rb"SharedAccessKey=([\w+/=]{20,})",
)
_FORM = [re.compile(form) for form in _FORMS]  # each has a literal prefix, which is fast to find, unlike their union
_NAMES = (
    *(rb"secret", rb"password", rb"passwd", rb"passphrase", rb"credential", rb"bearer", rb"jwt"),
    rb"token(?!iz|s\b|s_)",
    *(rb"%s[_\-. ]?key" % kind for kind in (b"api", b"access", b"account", b"private", b"auth", b"client")),
)
_NAME = [re.compile(name + rb"[\w\-]{0,30}") for name in _NAMES]
_VALUE = re.compile(rb"(?:\\?[\"'])?\s{0,3}(?:=>|:=|=|:|[ \t])\s{0,3}(?:\\?[\"'])?([\w+/=.\-~!@#$%^&*]{16,256})")
_PARAMETER = re.compile(
    rb"[?&;#](?:[\w.%\-]{0,30}[\-_.])?(?:key|sig|sas|auth|pass|pwd|session)=([\w+/=.\-~%]{16,256})", re.IGNORECASE
)
_USER = re.compile(rb"://([\w\-]{20,200})@")
_PASSWORD = re.compile(rb"://[^\s/?#@:\[\]\"'<>]{0,64}:([^\s/?#@\"'<>]{3,200})@")
_STAND_IN = re.compile(
    rb"your|passw|secret|token|example|change|\*\*|xxx|\.\.\.|[${}<>]|^pass$|^pwd$|^user$", re.IGNORECASE
)


def find_secrets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the offset and value of each password or token, each place once, in order."""
    secrets: dict[int, bytes] = {}
    for form in _FORM:
        for one in form.finditer(data):
            secrets[one.start(one.lastindex or 0)] = one[one.lastindex or 0]
    for one in _named_values(data):
        if looks_random(one[1].rstrip(b".")):
            secrets.setdefault(one.start(1), one[1].rstrip(b"."))
    for one in _PASSWORD.finditer(data):
        if not _STAND_IN.search(one[1]):
            secrets.setdefault(one.start(1), one[1])
    for value in _of_this_process():
        place = data.find(value)
        while place >= 0:
            secrets.setdefault(place, value)
            place = data.find(value, place + len(value))
    yield from sorted(secrets.items())


def _named_values(data: bytes) -> Iterator[re.Match[bytes]]:
    """Values after the name of a secret, or at a place in a URL where secrets are."""
    lower = data.lower()  # a search in lower case is ten times as fast as one that ignores case
    for name in _NAME:
        for one in name.finditer(lower):
            if value := _VALUE.match(data, one.end()):
                yield value
    yield from _PARAMETER.finditer(data)
    yield from _USER.finditer(data)


def digest_of(value: bytes) -> str:
    """The name by which a user allows a finding: eight digits of its SHA-256."""
    return hashlib.sha256(value).hexdigest()[:8]


def looks_random(value: bytes) -> bool:
    """Whether a value looks random: long, with digits among letters, and not a sequence of words."""
    plain = re.sub(rb"[^A-Za-z0-9]", b"", value)
    if len(value) < SHORTEST or len(plain) < 10 or len(set(plain)) < 8 or not re.search(rb"[A-Za-z]", plain):
        return False
    runs = re.findall(rb"[A-Z]+|[a-z]+|[0-9]+", plain)
    return any(one.isdigit() for one in runs) and len(runs) >= 5 and len(runs) * 5 >= len(plain)


def _of_this_process() -> Iterator[bytes]:
    """Yields the secrets of the environment, except plain words such as `tokenizer`, which any text may contain."""
    for name, value in os.environ.items():
        if names_a_secret(name) and len(value) >= LEAST and not re.fullmatch(r"[A-Z]?[a-z]+|[A-Z]+|[\d.]+", value):
            yield os.fsencode(value)
