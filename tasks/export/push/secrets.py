"""Passwords and tokens in the bytes of a release: by the forms that their issuers document, and by name and randomness.

A short table in place of a scanner such as detect-secrets: that one takes every word of a tokenizer with enough entropy
for a secret, and reads neither bytes nor the heads of weights. A value after a name such as `password` counts where it
looks drawn by lot; what is found can be allowed one by one, by the digest of its value.
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
_FORM = [re.compile(form) for form in _FORMS]  # each begins with letters that are searched for fast, unlike their union
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
    """Where in some bytes a password or a token begins, and the value itself; each place once, in order."""
    found: dict[int, bytes] = {}
    for form in _FORM:
        for one in form.finditer(data):
            found[one.start(one.lastindex or 0)] = one[one.lastindex or 0]
    for one in _named(data):
        if looks_random(one[1].rstrip(b".")):
            found.setdefault(one.start(1), one[1].rstrip(b"."))
    for one in _PASSWORD.finditer(data):
        if not _STAND_IN.search(one[1]):
            found.setdefault(one.start(1), one[1])
    for value in _of_this_process():
        place = data.find(value)
        while place >= 0:
            found.setdefault(place, value)
            place = data.find(value, place + len(value))
    yield from sorted(found.items())


def _named(data: bytes) -> Iterator[re.Match[bytes]]:
    """Values that stand after the name of a secret, or in a URL where one stands."""
    small = data.lower()  # letters are searched for in small ones, which is ten times as fast as in both
    for name in _NAME:
        for one in name.finditer(small):
            if value := _VALUE.match(data, one.end()):
                yield value
    yield from _PARAMETER.finditer(data)
    yield from _USER.finditer(data)


def digest_of(value: bytes) -> str:
    """What a user names a finding by, to allow it: eight digits of its SHA-256."""
    return hashlib.sha256(value).hexdigest()[:8]


def looks_random(value: bytes) -> bool:
    """Whether a value looks drawn by lot: long, with digits among letters, and no run of words."""
    plain = re.sub(rb"[^A-Za-z0-9]", b"", value)
    if len(value) < SHORTEST or len(plain) < 10 or len(set(plain)) < 8 or not re.search(rb"[A-Za-z]", plain):
        return False
    runs = re.findall(rb"[A-Z]+|[a-z]+|[0-9]+", plain)
    return any(one.isdigit() for one in runs) and len(runs) >= 5 and len(runs) * 5 >= len(plain)


def _of_this_process() -> Iterator[bytes]:
    """The secrets of the environment that are no words, such as `tokenizer`, which a text may have of itself."""
    for name, value in os.environ.items():
        if names_a_secret(name) and len(value) >= LEAST and not re.fullmatch(r"[A-Z]?[a-z]+|[A-Z]+|[\d.]+", value):
            yield os.fsencode(value)
