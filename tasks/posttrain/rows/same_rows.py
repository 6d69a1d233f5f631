"""Rows that are the same: messages are compared after Unicode NFC and with each run of white space as one space."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tasks.posttrain.rows.form import Row

EXACT = "exact_duplicate"
# The parts of a row that are trained on
PARTS = ("messages", "prompt", "chosen", "rejected", "completion", "label")


def distinct(rows: Iterable[Row], dropped: Counter[str]) -> Iterator[Row]:
    """The first of equal rows, in their order. The others are counted as dropped."""
    seen: set[bytes] = set()
    for row in rows:
        digest = digest_as_compared(parts_of(row))
        if digest in seen:
            dropped[EXACT] += 1
        else:
            seen.add(digest)
            yield row


def parts_of(row: Row, but: str = "") -> list[Any]:
    """The parts of a row that are trained on, all but one."""
    return [row[name] for name in PARTS if name in row and name != but]


def digest_as_compared(value: Any) -> bytes:
    """A SHA-256 that is the same for equal messages."""
    return hashlib.sha256(json.dumps(_normal(value), sort_keys=True).encode()).digest()


def _normal(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(unicodedata.normalize("NFC", value).split())
    if isinstance(value, dict):
        return {name: _normal(item) for name, item in value.items()}
    return [_normal(item) for item in value] if isinstance(value, list) else value
