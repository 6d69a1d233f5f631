"""Markdown and source code: the text as it is, and what its beginning states."""

from __future__ import annotations

import datetime
import re
import tomllib
from typing import Any

from storage.errors import BadDocument
from tasks.text.web.encoding import MARKS, decode

HEAD = 4000  # characters in which a licence is named
SNIFFED = 8192  # bytes
LONGEST_FRONT = 10_000  # characters. A longer front matter is text
YAML_FRONT = re.compile(r"---[ \t]*\r?\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
TOML_FRONT = re.compile(r"\+\+\+[ \t]*\r?\n(.*?)^\+\+\+[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
SPDX = re.compile(r"SPDX-License-Identifier:[ \t]*([A-Za-z0-9.+()-]+(?:[ \t]+(?:AND|OR|WITH)[ \t]+[A-Za-z0-9.+()-]+)*)")
NAMES = {"authors": "author", "lang": "language", "licence": "license"}


def read_plain(content: bytes) -> tuple[str, str]:
    """The text of a file and its encoding. Raises BadDocument for one that isn't text."""
    if b"\0" in content[:SNIFFED] and not content.startswith(tuple(MARKS)):
        raise BadDocument("not_text")
    text, encoding = decode(content, None, html=False)
    return text.replace("\0", ""), encoding


def read_code(content: bytes) -> dict[str, Any]:
    """The text of source code, and the licence that its head names. Raises BadDocument."""
    text, encoding = read_plain(content)
    named = SPDX.search(text[:HEAD])
    return {"text": text, "encoding": encoding} | ({"license": named.group(1)} if named else {})


def read_markdown(content: bytes) -> dict[str, Any]:
    """The text of Markdown without its front matter, whose fields are metadata. Raises BadDocument."""
    text, encoding = read_plain(content)
    body, fields = _parted(text)
    return {**fields, "text": body, "encoding": encoding}


def _parted(text: str) -> tuple[str, dict[str, Any]]:
    """A text without its front matter, and the fields of that."""
    import yaml

    for pattern, load in ((YAML_FRONT, yaml.safe_load), (TOML_FRONT, tomllib.loads)):
        found = pattern.match(text)
        if found and found.end() <= LONGEST_FRONT:
            try:
                fields = load(found.group(1))
            except (yaml.YAMLError, ValueError, TypeError, RecursionError):
                return text, {}
            if isinstance(fields, dict):
                return text[found.end() :], {
                    NAMES.get(name, name): value
                    for name, value in fields.items()
                    if isinstance(name, str) and _is_flat(value)
                }
    return text, {}


def _is_flat(value: Any) -> bool:
    """Whether a value is one or a list of such. Aliases of YAML can make others grow without end."""
    values = value if isinstance(value, list) else [value]
    return all(isinstance(each, str | bool | int | float | datetime.date | datetime.datetime) for each in values)
