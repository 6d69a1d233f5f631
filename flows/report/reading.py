"""Values of manifests, which other versions of a stage may have written: what has another form counts as missing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from storage.manifest import Manifest


def number(value: object) -> float | None:
    """A finite number, or a text of one."""
    if isinstance(value, str):
        try:
            value = float(value.replace(",", ""))
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def whole(value: object) -> int | None:
    """A number without a fraction."""
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def mapping(value: object, *names: str) -> Mapping[str, Any]:
    """A mapping, or the one that the names lead to. Empty for anything else."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def counted(value: object) -> dict[str, int]:
    """The whole numbers of a mapping by name."""
    found = {str(name): whole(one) for name, one in mapping(value).items()}
    return {name: one for name, one in found.items() if one is not None}


def table(manifest: Manifest | None, title: str) -> list[Mapping[str, Any]]:
    """The rows of a stage's table, or none."""
    return rows(mapping(manifest.counts, "tables").get(title)) if manifest else []


def rows(value: object) -> list[Mapping[str, Any]]:
    """The mappings of a list."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
