"""What the documents of a source say of themselves, counted: bytes of text, and languages and licences as in metadata.

A count is a number by name, so that those of portions are added, and those of excluded documents subtracted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from storage.shards.documents import Document

BYTES = "bytes"
LANGUAGE, LICENCE = "language", "license"  # in metadata. A name is one of these, a space, and the value
NOT_STATED, OTHER = "not stated", "others"
KINDS = 500  # values of a source, or of a portion of it, that are counted by name
SHOWN = 20  # values of a source in a table
LONGEST = 100  # characters of a value
_CREATIVE_COMMONS = re.compile(
    r"^https?://(?:www\.)?creativecommons\.org/(?:licenses/([a-z-]+)|publicdomain/(zero))/([\d.]+)"
)


def add(counts: Counter[str], document: Document, size: int, sign: int = 1) -> None:
    """Add a document, whose text has `size` bytes, or with a `sign` of -1 take it away."""
    counts[BYTES] += sign * size
    if f'"{LANGUAGE}"' in document.metadata or f'"{LICENCE}"' in document.metadata:
        for field, value in _stated(json.loads(document.metadata)):
            name = f"{field} {value}"
            if name not in counts and (sign < 0 or len(counts) >= KINDS):
                name = f"{field} {OTHER}"
            counts[name] += sign


def _stated(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for field in (LANGUAGE, LICENCE):
        value = metadata.get(field)
        texts = value if isinstance(value, list) else [value]
        if said := ", ".join(" ".join(text.split()) for text in texts if isinstance(text, str) and text.strip()):
            yield field, (licence_name(said) if field == LICENCE else said)[:LONGEST]


def licence_name(licence: str) -> str:
    """The SPDX identifier for an address of Creative Commons, such as CC-BY-SA-4.0, and any other licence as it is."""
    if not (found := _CREATIVE_COMMONS.match(licence)):
        return licence
    kind, zero, version = found.groups()
    return f"CC0-{version}" if zero else f"CC-{kind.upper()}-{version}"


def by_value(counts: Counter[str], field: str, documents: int) -> list[tuple[str, int]]:
    """(value of a field, documents), the most frequent first, then the rarest together, then those that state none."""
    stated = {name.removeprefix(f"{field} "): number for name, number in counts.items() if name.startswith(f"{field} ")}
    left = documents - sum(stated.values())
    others = stated.pop(OTHER, 0)
    ordered = sorted(stated.items(), key=lambda item: (-item[1], item[0]))
    others += sum(number for _, number in ordered[SHOWN:])
    found = [*ordered[:SHOWN], (OTHER, others), (NOT_STATED, left)]
    return [(value, number) for value, number in found if number]
