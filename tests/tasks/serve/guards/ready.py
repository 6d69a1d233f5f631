"""Guards of a policy, made once, and answers through them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import strategies as st

from tasks.serve.guards import Finding, Guards, GuardsConfig, OutputGuard

KEY = "ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
JWT = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
LINE = "MIIEpAIBAAKCAQEA0Zx81kd93jfLq02mNvB77xTqMIIEpAIBAAKCAQEA0Zx81kd9\n"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{LINE * 20}abcd==\n-----END RSA PRIVATE KEY-----"
# What a model may say, and what leaves the server under the default policy
PLANTED = {
    "jane.doe@corp-mail.com": "<EMAIL_ADDRESS>",
    "jane [at] corp-mail [dot] com": "<EMAIL_ADDRESS>",
    "jane@例子.公司": "<EMAIL_ADDRESS>",
    "4539 1488 0343 6467": "<CREDIT_CARD>",
    "4539148803436467": "<CREDIT_CARD>",
    "BE68 5390 0754 7034": "<IBAN_CODE>",
    "MT84 MALT 0110 0001 2345 MTLC AST0 01S": "<IBAN_CODE>",
    "+49 30 2345678": "<PHONE_NUMBER>",
    "(+353 or 0)86 854 9268": "<PHONE_NUMBER>",
    "536-90-4399": "<US_SSN>",
    KEY: "<API_KEY>",
    "AKIAQETGRTXLKWJHGFDS": "<API_KEY>",
    'token = "q8Zr2LmX0vTb5KpY7sNd"': 'token = "<API_KEY>"',
    "https://bob:pa55w0rdX9@corp-mail.com/": "https://bob:<PASSWORD>@corp-mail.com/",
    "curl -u admin:Hxkqwzvbn": "curl -u admin:<PASSWORD>",
    JWT: "<JSON_WEB_TOKEN>",
    PEM: "<PRIVATE_KEY>",
    "wetbacks": "<SLUR>",
    "W\u0301etb\u200backs": "<SLUR>",
    "jungle bunny": "<SLUR>",
    "192.168.1.7": "192.168.1.7",
    "2024-03-12": "2024-03-12",
    "v1.22.333": "v1.22.333",
}


@functools.cache
def _guards(policy: str) -> Guards:
    return Guards(GuardsConfig.model_validate_json(policy))


def guards(policy: dict[str, Any] | None = None) -> Guards:
    """The guards of a policy."""
    return _guards(json.dumps(policy or {}))


def through(guard: OutputGuard, chunks: Iterable[str]) -> str:
    """All that a guard releases of an answer in these chunks."""
    return "".join([*map(guard.feed, chunks), guard.finish()])


def outcome(policy: dict[str, Any] | None, chunks: Iterable[str]) -> tuple[str, list[Finding], Finding | None]:
    """What a new guard releases, what it found, and what ended the answer."""
    guard = guards(policy).output()
    return through(guard, chunks), sorted(guard.findings, key=str), guard.refused


def cut(text: str, size: int) -> Iterator[str]:
    """The text in chunks of a size."""
    for start in range(0, len(text), size):
        yield text[start : start + size]


@st.composite
def chunked(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> tuple[str, list[str]]:
    """A text, and the same text in chunks, of which some may be empty."""
    text = draw(texts)
    places = st.lists(st.integers(0, len(text)), max_size=12).map(sorted)
    ends = draw(st.one_of(st.just(list(range(1, len(text)))), places))
    return text, [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
