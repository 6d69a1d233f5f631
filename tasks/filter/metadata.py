"""Metadata fields that rules read by name: a path, a language, an address."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def first_texts(metadata: pa.Array, names: Sequence[str]) -> list[str]:
    """The text of the first of these fields that has one, or "", in each document's metadata (JSON, or null).

    `a.b` is the field of that name or, if it is missing, the field `b` of the object `a`.
    """
    return [_first(_object(text), names) for text in metadata.to_pylist()]


def _object(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _first(fields: dict[str, Any], names: Sequence[str]) -> str:
    for name in names:
        value: Any = fields.get(name)
        if value is None and "." in name:
            value = fields
            for part in name.split("."):
                value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, str) and value:
            return value
    return ""
