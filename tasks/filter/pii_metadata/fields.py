"""The texts in metadata, which is JSON if our own `download` wrote it, and may be anything in adopted documents.

A path names a text: `author`, `meta.url`, `tags[0]`, `authors[1].email`. A key that could be mistaken for a path is in
brackets and quotes: `["a.b"]`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

Fields = Literal["all"] | list[str]
DEPTH = 100  # more than real metadata has. JSON that is nested deeper counts as plain text
INDEX = re.compile(r"\[\d+\]")
PLAIN = re.compile(r'[^.\[\]"]+')


class Text(NamedTuple):
    """A text in metadata: its path, the keys on it, and the object or list that contains the text."""

    path: str
    keys: tuple[str | int, ...]
    holder: Any
    value: str

    def is_wanted(self, wanted: Fields) -> bool:
        """Whether `wanted` names it, by its path with or without indices, or names something that contains it."""
        if wanted == "all":
            return True
        names = {self.keys[0], self.path, INDEX.sub("", self.path)}
        names |= {
            ".".join(str(key) for key in self.keys[:end] if isinstance(key, str)) for end in range(len(self.keys))
        }
        return not names.isdisjoint(wanted)


def fields_of(metadata: str | None) -> dict[str, Any]:
    """The fields of metadata, or the whole text under the name "" if it isn't a JSON object or is nested too deep."""
    try:
        fields = json.loads(metadata or "{}")
    except (ValueError, RecursionError):
        fields = None
    return fields if isinstance(fields, dict) and _is_shallow(fields) else {"": metadata}


def replace_fields(metadata: str, change: Callable[[str, str], str]) -> str:
    """The metadata with each text replaced by `change(path, value)`."""
    fields = fields_of(metadata)
    for text in [*texts_of(fields, "all")]:
        text.holder[text.keys[-1]] = change(text.path, text.value)
    return fields[""] if list(fields) == [""] else json.dumps(fields, sort_keys=True, ensure_ascii=False)


def texts_of(fields: dict[str, Any], wanted: Fields) -> Iterator[Text]:
    """Yield the wanted texts, in order."""
    for text in _texts(fields, "", ()):
        if text.is_wanted(wanted):
            yield text


def _texts(holder: dict[str, Any] | list[Any], path: str, keys: tuple[str | int, ...]) -> Iterator[Text]:
    members: Any = holder.items() if isinstance(holder, dict) else enumerate(holder)
    for key, value in members:
        if isinstance(value, str):
            if value:
                yield Text(_below(path, key), (*keys, key), holder, value)
        elif isinstance(value, dict | list):
            yield from _texts(value, _below(path, key), (*keys, key))


def _below(path: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{path}[{key}]"
    if key and not PLAIN.fullmatch(key):
        return f"{path}[{json.dumps(key, ensure_ascii=False)}]"
    return f"{path}.{key}" if path else key


def _is_shallow(fields: dict[str, Any]) -> bool:
    level: list[Any] = [fields]
    for _ in range(DEPTH):
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return True
    return False
