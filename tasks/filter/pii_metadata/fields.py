"""The fields of metadata, which is JSON by our own `download` and may be anything in adopted documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from tasks.filter.pii_metadata.config import Fields


def fields_of(metadata: str | None) -> dict[str, Any]:
    """The fields of metadata; of a text that is no JSON object, itself under the name ""."""
    try:
        fields = json.loads(metadata or "{}")
    except (ValueError, RecursionError):
        fields = None
    return fields if isinstance(fields, dict) else {"": metadata}


def replace_fields(metadata: str, change: Callable[[str, str], str]) -> str:
    """The metadata with each text field as `change(name, value)` gives it."""
    fields = fields_of(metadata)
    fields |= {name: change(name, text) for name, text in texts_of(fields, "all")}
    return fields[""] if list(fields) == [""] else json.dumps(fields, sort_keys=True, ensure_ascii=False)


def texts_of(fields: dict[str, Any], wanted: Fields) -> Iterator[tuple[str, str]]:
    """(name, value) of the wanted fields that hold text."""
    for name, value in fields.items():
        if isinstance(value, str) and value and (wanted == "all" or name in wanted):
            yield name, value
