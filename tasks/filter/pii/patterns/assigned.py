"""Secrets without a known form: a random value after a name that identifies it, and passwords in URLs.

Names are as in shells, YAML, JSON, TOML, INI and XML files, HTTP headers, flags of commands and sentences, with or
without quotes: `export X_TOKEN=…`, `password: …`, `"client_secret": "…"`, `<password>…</password>`, `--token …`,
`Authorization: Bearer …`. `values.py` judges the values.
"""

from __future__ import annotations

import re
from html import unescape

from tasks.filter.pii.findings import Finding
from tasks.filter.pii.patterns.values import (
    is_basic,
    is_code,
    is_login,
    is_login_in_url,
    is_password,
    is_placeholder,
    is_random,
)

SURE, LIKELY = 0.75, 0.6

_OF_KEYS = (
    r"(?:api|app|secret|access|auth|private|client|encryption|signing|account|service|master|shared|storage|webhook"
    r"|deploy|license|consumer|admin|stripe|aws|gcp|azure|openai|anthropic|github|gitlab|twilio|sendgrid|mailgun|heroku"
    r"|datadog|dd|algolia|cloudflare|session|jwt|hmac|rest|write|maps|google|user)"
)
_KEY = (
    rf"(?:{_OF_KEYS}[_.\- ]?keys?(?:[_.\-]?id)?"
    r"|tokens?|secrets?|secret[_.\-]?(?:key|token|access[_.\-]?key)|credentials?|authorization"
    r"|client[_.\-]?secret(?:[_.\-]?id)?"
    r"|(?:\w+[_\-])?auth|creds?|accountkey|sharedaccesskey|private_key_id)"
)
# The last word of a label with several: mot de passe, palavra-passe, kata sandi, mật khẩu, كلمة المرور
_PASSWORD = (
    r"(?:pass(?:wd|word|phrase|code|wort|ord|e)?|pwd|passw|kennwort|contrase[nñ]y?a|clave|senha|wachtwoord|has[lł]o"
    r"|heslo|l[oö]senord|adgangskode|salasana|jelsz[oó]|[sş]ifre|parol[aăã]?|sandi|khẩu|парол[ьяа]?|密码|密碼|口令"
    r"|パスワード|비밀번호|암호|المرور|السر|סיסמ[הא]|รหัสผ่าน|पासवर्ड|κωδικός)"
)
_SHORT = frozenset({"pass", "pwd", "passe", "clave", "senha", "haslo", "heslo", "parol", "parola", "sandi"})
_END = r"(?:[_.\-]?(?:\d{1,2}|prod|production|live|dev|staging|test|default|value|env|b64|base64))?"
_NAMED = rf"(?P<name>[\w.\-\x80-\U0010ffff]*?(?:(?P<key>{_KEY})|(?P<pass>{_PASSWORD})){_END})"
_SIGNS = r"[A-Za-z0-9_\-+/=.~!@#$%^&*?|:]"
_LONGEST = 4000  # characters of a value
_VALUE = rf"(?P<value>{_SIGNS}{{8,{_LONGEST}}})(?P<after>.|\Z)"
_ASSIGNS = (
    rf"""{_NAMED}\\?["'\]]{{0,3}}(?: is(?=:))?[ \xa0\u202f]{{0,3}}(?P<sign>=>|:{{0,3}}=|\?=|==|[:：,>])[ \t]{{0,12}}"""
)
_ASSIGNMENT = re.compile(
    rf"""{_ASSIGNS}(?P<scheme>(?:\\?["'])?(?:bearer|basic|(?:api-?)?token|apikey|digest)[ ]+)?"""
    rf"""(?P<quote>\\?["'])?{_VALUE}""",
    re.IGNORECASE | re.DOTALL,
)
# Passwords with signs that JSON and XML escape
_ESCAPED = re.compile(
    rf"""{_ASSIGNS}(?P<quote>")?(?P<value>(?:{_SIGNS}|\\["\\/]|&(?:amp|lt|gt|quot|apos|#\d{{1,4}});){{8,{_LONGEST}}})(?P<after>["<])""",
    re.IGNORECASE,
)
_FLAG = re.compile(rf"""--?{_NAMED} {{1,3}}(?P<quote>\\?["'])?{_VALUE}""", re.IGNORECASE | re.DOTALL)
_LOGIN = re.compile(r"""--?u(?:ser)?[ =]{1,3}["']?(?P<user>[^\s:"']{0,80}):["']?(?P<value>[^\s"'`\\]{6,80})""")
_GLUED = re.compile(r"""-p(?P<space> {0,3})["']?(?P<value>[^\s"'`\\]{8,64})""")
_REQUESTS = re.compile(r"\b(?:curl|wget|https?)\b")
_GLUING = re.compile(r"\b(?:mysql\w*|mariadb[\w\-]*|sshpass|7z\w?|u?n?rar)\b[^\n]*\Z")
_SPACED = re.compile(r"\bsshpass(?: -v)? {1,3}\Z")  # mysql -p NAME is a database
_FIRST_WORD = re.compile(rf"(?<![A-Za-z]){_OF_KEYS} \Z", re.IGNORECASE)
_BEFORE = re.compile(r"[\s(\[/|,;>*\"'`&?:{\-]|[^\x00-\x7f]")
_SETTING = re.compile(
    r"[\s>#;\-*$]*(?:(?:export|set|setx|ENV|ARG|SET|env:?)\s+)?[\"']?(?:[\w.]+\s+)?(?:--?)?|.*[?&;\s]--?|.*[;&]"
)
_PARAMETER = re.compile(r"&(?:amp\Z|[\w.\-]+=)")
# A parameter in a URL's query, which ends where values in quotes or sentences don't. Some names count only there
_IN_QUERY = re.compile(r"://[^\s\"'<>]*[?&;#]\Z")
_QUERY = re.compile(
    rf"(?:{_NAMED}|[\w\-]*(?P<vague>key|sig(?:nature)?|session(?:_?id)?|phpsessid|sid))"
    rf"=(?P<value>[A-Za-z0-9_\-+/=.~!*%:]{{12,{_LONGEST}}})",
    re.IGNORECASE,
)
_TURNS = re.compile(r"[A-Za-z](?=\d)|\d(?=[A-Za-z])")  # between letters and digits: `PKCS7KeyTypes` has two, a key many
_USERINFO = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.\-]{1,20})://(?P<user>[^\s:/@\"'<>`]{0,80}):(?P<password>[^\s/@\"'<>`]{3,120}|[^\s@\"'<>`]{3,120})\Z",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(?:bearer|(?P<basic>basic)) {1,2}\Z", re.IGNORECASE)
_TOKEN = re.compile(rf"[A-Za-z0-9_\-+/.~]{{16,{_LONGEST}}}={{0,2}}")
_USER_ALONE = re.compile(r"://(?P<token>[A-Za-z0-9_\-.~]{16,200})\Z")


def assigned_at(text: str, start: int, end: int) -> Finding | None:
    """The secret in the assignment that begins at `start` and ends near `end`."""
    if text[start : start + 3].lower() == "key":
        before = _FIRST_WORD.search(text, max(start - 14, 0), start)
        start = before.start() if before else start
    match = _query_at(text, start)
    if match is not None and not match["pass"]:
        value = match["value"]
        sure = (is_random(value) or _is_mixed(value)) and len(value) >= (16 if match["vague"] else 12)
        return Finding("API_KEY", *match.span("value"), LIKELY) if sure and not is_placeholder(value) else None
    match = _ASSIGNMENT.match(text, start, min(end + _LONGEST, len(text)))
    if match is None or match["after"] in (";", "\\"):
        escaped = _ESCAPED.match(text, start, min(end + _LONGEST, len(text)))
        if escaped is not None and escaped["pass"] and _is_closed(text, escaped) and _has_escape(escaped):
            return _password(text, escaped)
    if match is None or not _is_closed(text, match):
        return None
    if match["scheme"]:
        value = match["value"] if match["quote"] else match["value"].rstrip(".,:;?!|")
        basic = match["scheme"].strip(" \\\"'").lower() == "basic"
        random = is_basic(value) if basic else len(value) >= 16 and is_random(value, 1)
        return Finding("API_KEY", match.start("value"), match.start("value") + len(value), SURE) if random else None
    if match["pass"]:
        return _password(text, match)
    return _key(match)


def flag_at(text: str, start: int, end: int) -> Finding | None:
    """The secret after the flag that begins at `start`: `--token …`, `-p…` of MySQL, `-u user:…` of curl."""
    match = _FLAG.match(text, start, min(end + _LONGEST, len(text)))
    if match is not None:
        if not (match["after"] in ('"', "'", "\\", "`") or match["after"].isspace() or not match["after"]):
            return None
        if match["key"]:
            return _key(match)
        sure = is_password(match["value"]) and not is_code(match["value"])
        return Finding("PASSWORD", *match.span("value"), LIKELY) if sure else None
    match = _LOGIN.match(text, start)
    if match is not None:
        command = _REQUESTS.search(text, max(start - 300, 0), start)
        sure = is_login(match["user"], match["value"]) and not match["value"].isdigit()
    elif match := _GLUED.match(text, start):
        command = (_SPACED if match["space"] else _GLUING).search(text, max(start - 100, 0), start)
        sure = is_password(match["value"])
    else:
        return None
    return Finding("PASSWORD", *match.span("value"), LIKELY) if command and sure else None


def bearer_at(text: str, start: int, end: int) -> Finding | None:
    """The token of an authorization that lacks the header's name: `Bearer …`."""
    scheme, match = _BEARER.search(text, max(start - 10, 0), start), _TOKEN.match(text, start)
    if scheme is None or match is None:
        return None
    value = match[0].rstrip(".")
    sure = is_random(value) and (not scheme["basic"] or is_basic(value))
    return Finding("API_KEY", start, start + len(value), SURE) if sure else None


def userinfo_at(text: str, at: int) -> Finding | None:
    """The password of the URL whose user information ends at this @, or the token that is its user."""
    if at + 1 < len(text) and not (text[at + 1].isalnum() or text[at + 1] in "[/"):
        return None
    alone = _USER_ALONE.search(text, max(at - 220, 0), at)
    if alone is not None:
        return Finding("API_KEY", *alone.span("token"), SURE) if is_random(alone["token"]) else None
    match = _USERINFO.search(text, max(at - 220, 0), at)
    if match is None:
        return None
    sure = is_login_in_url(match["user"], match["password"])
    return Finding("PASSWORD", *match.span("password"), SURE) if sure else None


def _is_mixed(value: str) -> bool:
    """Whether letters and digits alternate in a value, unlike in a word followed by a number."""
    return len(re.findall(r"[A-Za-z]+|\d+", value)) >= 4 and len(re.findall(r"\d", value)) >= 2


def _query_at(text: str, start: int) -> re.Match[str] | None:
    """The parameter that begins at `start`, if it is in the query or fragment of a URL."""
    if text[start - 1 : start] not in ("?", "&", ";", "#") or not _IN_QUERY.search(text, max(start - 500, 0), start):
        return None
    return _QUERY.match(text, start)


def _is_closed(text: str, match: re.Match[str]) -> bool:
    """Whether the value ends where a value can: at its quote, its tag, a space or a punctuation mark."""
    after, sign = match["after"], match["sign"]
    if sign == ">":
        return after == "<" and text[match.start() - 1 : match.start()] == "<"
    if match["quote"]:
        return after in ('"', "'", "\\") or (bool(match["scheme"]) and after.isspace())
    if sign == ",":
        return False
    if after == ")" and not match["scheme"] and sign not in ":：":
        return False
    return not after or after.isspace() or after in ",;\"'`)\\<" or not after.isascii()


def _has_escape(match: re.Match[str]) -> bool:
    """Whether an escape in the value counts: in JSON within the value's quotes, in XML within its tag."""
    return match["after"] == match["quote"] if match["quote"] else match["sign"] == ">"


def _key(match: re.Match[str]) -> Finding | None:
    quote, value = match["quote"], match["value"]
    if not quote:
        value = value.rstrip(".,:;?!|").partition("&")[0]
    if "public" in match["name"].lower() or len(value) < 16 or not is_random(value):
        return None
    if not quote and len(_TURNS.findall(value)) < 3:
        return None
    first = match.start("value")
    return Finding("API_KEY", first, first + len(value), SURE if quote else LIKELY)


def _password(text: str, match: re.Match[str]) -> Finding | None:
    label, at = match["pass"], match.start("pass")
    if label.lower() in _SHORT and text[at - 1 : at].isalpha() and label[0].isupper() == text[at - 1].isupper():
        return None  # compass, enclave
    first, value = match.start("value"), match["value"]
    if not (match["quote"] or match["sign"] == ">"):
        if parameter := _PARAMETER.search(value):
            value = value[: parameter.start()]
        setting = _is_setting(text, match.start())
        if not (setting and match["after"] in ("", "\n", "\r")):
            value = value.rstrip(".:?|")
        in_sentence = _may_precede(text, match.start()) and not is_code(value)
        if match["sign"] == "==" or not (setting or in_sentence):
            return None
    sure = len(unescape(value)) >= 8 and is_password(value)
    return Finding("PASSWORD", first, first + len(value), LIKELY) if sure else None


def _is_setting(text: str, start: int) -> bool:
    """Whether the name at `start` begins its line: a setting, not a word in a sentence or in code."""
    before = text[max(start - 80, 0) : start]
    return _SETTING.fullmatch(before.rpartition("\n")[2]) is not None


def _may_precede(text: str, start: int) -> bool:
    """Whether the name at `start` is not preceded by a part of the same word."""
    return start == 0 or _BEFORE.match(text, start - 1, start) is not None
