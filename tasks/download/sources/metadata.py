"""A row's other fields as JSON: nested values stay nested, and values that JSON can't express become text.

Timestamps, dates and times are ISO 8601, with the zone if the source has one. Durations are seconds. Decimals keep
their digits. Binary values, values that the reader couldn't read, fields nested deeper than `DEPTH`, and the largest
fields of a row with too much metadata are left out and counted. NaN and the infinities become null, and count with
them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

DEPTH = 32
TOO_DEEP = "nested too deep"
UNREADABLE = object()  # for a value of the source that Python can't represent
SHOWN = 40  # characters of a field's name
_JSON = json.JSONEncoder(ensure_ascii=False).encode


class NotKept(NamedTuple):
    """A field of a source that is left out, at least in part, and why."""

    source: str
    field: str
    why: str


def to_json(row: Mapping[str, Any], limit: int, source: str, dropped: Counter[NotKept]) -> dict[str, Any]:
    """The fields of a row that fit into `limit` bytes. What is left out is added to `dropped`, once a row."""
    kept: dict[str, Any] = {}
    for name, value in row.items():
        reasons: set[str] = set()
        found = _value(value, DEPTH, reasons)
        if found is not UNREADABLE and TOO_DEEP not in reasons:  # only empty brackets would be left of such a field
            kept[name] = found
        dropped.update(NotKept(source, _shown(name), why) for why in reasons)
    sizes = {name: _size(name, value) for name, value in kept.items()}
    total = 2 + sum(sizes.values())
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        if total <= limit:
            break
        total -= sizes[name]
        del kept[name]
        dropped[NotKept(source, _shown(name), "too large")] += 1
    return kept


def _value(value: Any, depth: int, reasons: set[str]) -> Any:
    """A value as JSON can express it, or UNREADABLE, with the reason in `reasons`."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        reasons.add("not a finite number")
        return None
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Mapping | list | tuple):
        return _nested(value, depth, reasons)
    reasons.add("binary" if isinstance(value, bytes | bytearray | memoryview) else "unreadable")
    return UNREADABLE


def _nested(value: Mapping[Any, Any] | list[Any] | tuple[Any, ...], depth: int, reasons: set[str]) -> Any:
    if not depth:
        reasons.add(TOO_DEEP)
        return UNREADABLE
    if isinstance(value, Mapping):
        names = (key if isinstance(key, str) else _value(key, depth - 1, reasons) for key in value)
        members = zip(names, (_value(member, depth - 1, reasons) for member in value.values()), strict=True)
        return {str(name): member for name, member in members if name is not UNREADABLE and member is not UNREADABLE}
    elements = (_value(element, depth - 1, reasons) for element in value)
    return [None if element is UNREADABLE else element for element in elements]  # the others keep their places


def _size(name: str, value: Any) -> int:
    return len(_JSON({name: value}).encode("utf-8", "surrogatepass"))


def _shown(name: str) -> str:
    shown = name if len(name) <= SHOWN else f"{name[: SHOWN - 1]}…"
    return shown if shown.isprintable() else repr(shown)
