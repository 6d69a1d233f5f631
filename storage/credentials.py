"""Finds passwords and tokens in settings, and removes them from what is printed, logged or stored.

A profile is kept in Git, in manifests and in Prefect's database, so it may hold no credentials: whoever reads a setting
refuses them (`has_credentials`). Libraries quote URLs and variables of the environment in their errors, so every error
of ours and every line of a log goes through `redact`.
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
    "Set it in the environment instead, as a profile is kept in manifests and in Prefect's database: "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3, FSSPEC_PROTOCOL_OPTION (such as FSSPEC_FTP_PASSWORD) for any "
    "file system, HF_TOKEN for the hub."
)
LEAST = 8  # characters of a secret in the environment: shorter values are words, such as `false`

_IN_SCHEME = r"[a-z0-9+.\-]"
_PORT = r"\d+(?:[/?#\s\"',;)\]}]|$)"
# A password may hold slashes and @, and is not a port. A lone name before @ is a secret only in HTTP: a token
_USERINFO = re.compile(
    rf"((?<!{_IN_SCHEME}){_IN_SCHEME}+://)(?:[^\s/?#@:\[]*:(?!{_PORT})\S*@|(?<=http://)[^\s/?#@]+@|(?<=https://)[^\s/?#@]+@)",
    re.IGNORECASE,
)
_URL = re.compile(rf"(?<!{_IN_SCHEME}){_IN_SCHEME}+://\S+", re.IGNORECASE)
# Names of secrets in parameters of URLs and options of file systems: words in a name, and whole names
_IN_NAMES = (
    r"token(?!s[=_]|is|iz)|secret(?!ar)|passw|passphrase|jwt|bearer|oauth|credential|signature|connection[_.\- ]?string"
    r"|authori(?:s|z)ation|access[_.\- ]?key"
)
_NAMES = r"(?:api|account|private)?[_\-]?key|pwd|pass|session|sig|sas|auth"
_NAMED = rf"\w{{0,60}}(?:{_IN_NAMES})\w{{0,60}}"
_PARAMETER = re.compile(rf"([?&;#](?:[\w\-.%]*[\-.])?(?:{_NAMED}|{_NAMES})=)[^&;#\s\"'<>]+", re.IGNORECASE)
_TOKEN = re.compile(  # forms that issuers document for scanners
    r"\b(?:hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{60,}|A(?:KI|SI)A[A-Z2-7]{16}\b|pnu_\w{30,}"
    r"|(?<=AccountKey=)[\w+/=]{20,}|(?<=SharedAccessKey=)[\w+/=]{20,}|(?<=[Bb]earer )[\w\-.~+/=]{16,}"
    r"|sk-(?:(?:proj|ant|svcacct)-[\w\-]{20,}|[A-Za-z0-9]{32,})|xox[abeoprs]-[\w\-]{10,}"
    r"|gsk-[0-9A-Za-z]{8}-[0-9A-Za-z]{43})"  # a key of `gristmill serve`
)
_VARIABLE = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|SALT|AUTH_STRING|CONNECTION_STRING|ACCESS_KEY_ID|SAS"
    r"|(?:API|ACCESS|ACCOUNT|PRIVATE|SECRET)_?KEY)$|^FSSPEC_\w+_(?:KEY|USERNAME)$"
)
_OPTION = re.compile(rf"{_NAMED}|key|sas", re.IGNORECASE)


def has_credentials(value: str) -> bool:
    """Whether a setting holds a password or a token: in a URL's user part or query, or by its form, percent-encoded or
    not."""
    for text in {value, decoded(value)}:
        joined = re.sub(r"\s", "_", text) if re.match(r"\S+://", text) else text  # a password may hold a space
        if _in_text(joined) != joined:
            return True
    return False


def decoded(url: str) -> str:
    """The URL without percent-encoding, which may be doubled, for `redact`."""
    for _ in range(3):
        url = unquote(url)
    return url


def redact(text: str) -> str:
    """A text without credentials in URLs, known forms of tokens, and this process's own secrets."""
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
    """The values of variables with a secret's name, and secrets in the JSON of FSSPEC_PROTOCOL."""
    for name, value in environment.items():
        if names_a_secret(name) and len(value) >= LEAST:
            yield value
        elif name.startswith("FSSPEC_") and value.lstrip().startswith("{"):
            try:
                yield from _options(json.loads(value))
            except ValueError:
                continue  # fsspec reports it


@functools.cache  # every error is redacted, including one for each quarantined row
def names_a_secret(variable: str) -> bool:
    """Whether a variable of the environment has a secret's name, so that `redact` hides its value."""
    return _VARIABLE.search(variable) is not None


def _options(options: Any) -> Iterator[str]:
    if isinstance(options, dict):
        for name, value in options.items():
            if isinstance(value, str) and len(value) >= LEAST and _OPTION.fullmatch(name):
                yield value
            yield from _options(value)


def guard() -> None:
    """Redact log records and uncaught exceptions of this process from now on, including those of libraries."""
    plain = logging.getLogRecordFactory()
    if getattr(plain, "func", None) is not _redacted_record:
        logging.setLogRecordFactory(functools.partial(_redacted_record, plain))
    sys.excepthook = print_exception


def _redacted_record(plain: Callable[..., logging.LogRecord], *arguments: Any, **named: Any) -> logging.LogRecord:
    record = plain(*arguments, **named)
    message = record.getMessage()
    if (clean := redact(message)) != message:
        record.msg, record.args = clean, ()
    if record.exc_info and record.exc_info[0] is not None:
        trace = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        if (clean := redact(trace)) != trace:
            record.exc_text = clean  # formatters print it in place of the exception
    return record


def print_exception(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """Write an exception with its traceback to standard error, redacted."""
    sys.stderr.write(redact("".join(traceback.format_exception(kind, value, trace))))
