"""Passwords and tokens: found in what a person configures, and taken out of what is printed, logged or kept.

A profile is kept in Git, in manifests and in Prefect's database, so it holds no credentials: whoever reads a setting
refuses one that does (`has_credentials`). Libraries quote in their errors what they were given, by URL or by the
environment; every error of ours and every line of a log goes through `redact`.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any
from urllib.parse import unquote

HIDDEN = "***"
REMEDY = (
    "Leave it out and give it by the environment, as a profile is kept in manifests and in Prefect's database: "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3, FSSPEC_PROTOCOL_OPTION (such as FSSPEC_FTP_PASSWORD) for any "
    "file system, HF_TOKEN for the hub."
)
LEAST = 8  # characters of a secret in the environment: shorter ones are words, such as `false`

_IN_SCHEME = r"[a-z0-9+.\-]"
_PORT = r"\d+(?:[/?#\s\"',;)\]}]|$)"
# A password may hold slashes and @. A port is none; a lone name before @ is a secret only in HTTP, where it is a token
_USERINFO = re.compile(
    rf"((?<!{_IN_SCHEME}){_IN_SCHEME}+://)(?:[^\s/?#@:\[]*:(?!{_PORT})\S*@|(?<=http://)[^\s/?#@]+@|(?<=https://)[^\s/?#@]+@)",
    re.IGNORECASE,
)
_URL = re.compile(rf"(?<!{_IN_SCHEME}){_IN_SCHEME}+://\S+", re.IGNORECASE)
# How secrets are named, in parameters of URLs and options of file systems: words in a name, whole names
_IN_NAMES = (
    r"token(?!s[=_]|is|iz)|secret(?!ar)|passw|passphrase|jwt|bearer|oauth|credential|signature|connection[_.\- ]?string"
    r"|authori(?:s|z)ation|access[_.\- ]?key"
)
_NAMES = r"(?:api|account|private)?[_\-]?key|pwd|pass|session|sig|sas|auth"
_NAMED = rf"\w{{0,60}}(?:{_IN_NAMES})\w{{0,60}}"
_PARAMETER = re.compile(rf"([?&;#](?:[\w\-.%]*[\-.])?(?:{_NAMED}|{_NAMES})=)[^&;#\s\"'<>]+", re.IGNORECASE)
_TOKEN = re.compile(  # as their issuers document them for scanners
    r"\b(?:hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{60,}|A(?:KI|SI)A[A-Z2-7]{16}\b|pnu_\w{30,}"
    r"|(?<=AccountKey=)[\w+/=]{20,}|(?<=SharedAccessKey=)[\w+/=]{20,}|(?<=[Bb]earer )[\w\-.~+/=]{16,}"
    r"|sk-(?:(?:proj|ant|svcacct)-[\w\-]{20,}|[A-Za-z0-9]{32,})|xox[abeoprs]-[\w\-]{10,})"
)
_VARIABLE = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|SALT|AUTH_STRING|CONNECTION_STRING|ACCESS_KEY_ID|SAS"
    r"|(?:API|ACCESS|ACCOUNT|PRIVATE|SECRET)_?KEY)$|^FSSPEC_\w+_(?:KEY|USERNAME)$"
)
_OPTION = re.compile(rf"{_NAMED}|key|sas", re.IGNORECASE)


def has_credentials(value: str) -> bool:
    """Whether a setting holds a password or a token: in a URL's user part or query, or by its form, also where parts
    of it are percent-encoded."""
    for text in {value, decoded(value)}:
        joined = re.sub(r"\s", "_", text) if re.match(r"\S+://", text) else text  # a password may hold a space
        if _in_text(joined) != joined:
            return True
    return False


def decoded(url: str) -> str:
    """Without percent-encoding, though it be encoded twice: as `redact` can read it."""
    for _ in range(3):
        url = unquote(url)
    return url


def redact(text: str) -> str:
    """A text without the credentials of its URLs, without known tokens and without this process's own secrets."""
    text = _in_text(text)
    for secret in sorted(set(_of_environment(os.environ)), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _in_text(text: str) -> str:
    if "://" in text:
        text = _USERINFO.sub(rf"\1{HIDDEN}@", text)
        text = _URL.sub(lambda url: _PARAMETER.sub(rf"\1{HIDDEN}", url[0]), text)
    return _TOKEN.sub(HIDDEN, text)


def _of_environment(environment: Mapping[str, str]) -> Iterator[str]:
    """The values of variables that are named as secrets are, and those in the JSON of FSSPEC_PROTOCOL."""
    for name, value in environment.items():
        if names_a_secret(name) and len(value) >= LEAST:
            yield value
        elif name.startswith("FSSPEC_") and value.lstrip().startswith("{"):
            try:
                yield from _options(json.loads(value))
            except ValueError:
                continue  # fsspec will say so


@functools.cache  # every error is redacted, that of each row that is quarantined too
def names_a_secret(variable: str) -> bool:
    """Whether a variable of the environment is named as secrets are, so that `redact` hides its value."""
    return _VARIABLE.search(variable) is not None


def _options(options: Any) -> Iterator[str]:
    if isinstance(options, dict):
        for name, value in options.items():
            if isinstance(value, str) and len(value) >= LEAST and _OPTION.fullmatch(name):
                yield value
            yield from _options(value)


def guard() -> None:
    """From now on log records and uncaught exceptions of this process are redacted, those of libraries too."""
    plain = logging.getLogRecordFactory()
    if getattr(plain, "func", None) is not _redacted_record:
        logging.setLogRecordFactory(functools.partial(_redacted_record, plain))
    sys.excepthook = print_exception


def _redacted_record(plain: Callable[..., logging.LogRecord], *arguments: Any, **named: Any) -> logging.LogRecord:
    record = plain(*arguments, **named)
    said = record.getMessage()
    if (clean := redact(said)) != said:
        record.msg, record.args = clean, ()
    if record.exc_info and record.exc_info[0] is not None:
        trace = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        if (clean := redact(trace)) != trace:
            record.exc_text = clean  # formatters take it for what they would write
    return record


def print_exception(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """Write an exception with its traceback to standard error, redacted."""
    sys.stderr.write(redact("".join(traceback.format_exception(kind, value, trace))))
