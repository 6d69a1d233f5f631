"""The elements of a JSON array, cut out of a file of any size without holding more than one of them.

Only brackets, quotes and commas count here. So an element that is broken in itself is left to the reader of elements,
which rejects it like a broken line. A break of the array itself raises BrokenArray.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

CHUNK = 1 << 20
MARK = re.compile(rb'["\[\]{},]')
IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)


class BrokenArray(ValueError):
    """The file isn't a JSON array, or only the beginning of one."""


def is_array(file: BinaryIO) -> bool:
    """Whether a file with `peek` begins as an array. Reads nothing."""
    start: bytes = file.peek(CHUNK)  # type: ignore[attr-defined]
    return start.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"["


def split_array(read: Callable[[int], bytes], limit: int) -> Iterator[bytes | None]:
    """The bytes of each element, None for one longer than `limit`. Raises BrokenArray after the last whole one."""
    element = _Element(limit)
    depth, in_string, escaped, found = 0, False, False, False
    while chunk := read(CHUNK):
        at = start = 0
        if escaped:  # the chunk before ended with a backslash
            at, escaped = 1, False
        while at < len(chunk):
            if in_string:
                end = IN_STRING.match(chunk, at).end()  # type: ignore[union-attr]
                escaped = chunk[end : end + 1] == b"\\"
                in_string = end == len(chunk) or escaped
                at = end + 1
                continue
            mark = MARK.search(chunk, at)
            sign, at = (mark.group(), mark.end()) if mark else (None, len(chunk))
            if depth == 0:
                outside = chunk[start : mark.start() if mark else at]
                if outside.removeprefix(codecs.BOM_UTF8).strip() or (sign and (sign != b"[" or found)):
                    raise BrokenArray("there is more in it than an array")
                if sign:
                    depth, found = 1, True
                start = at
            elif sign == b'"':
                in_string = True
            elif sign in (b"[", b"{"):
                depth += 1
            elif depth > 1 and sign in (b"]", b"}"):
                depth -= 1
            elif depth == 1 and sign:
                element.add(chunk[start : at - 1])
                yield from element.take(last=sign != b",")
                start = at
                depth = 1 if sign == b"," else 0
        element.add(chunk[start:] if depth else b"")
    if depth or not found:
        raise BrokenArray("it ends within its array")


class _Element:
    """The element that is being read."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.parts: list[bytes] = []
        self.size = 0
        self.number = 0

    def add(self, part: bytes) -> None:
        self.size += len(part)
        if self.size > self.limit:
            self.parts.clear()
        else:
            self.parts.append(part)

    def take(self, *, last: bool) -> Iterator[bytes | None]:
        """The element, before the next one begins. `[]` has none."""
        whole = b"".join(self.parts).strip()
        too_long = self.size > self.limit
        self.parts.clear()
        self.size = 0
        self.number += 1
        if whole or too_long or not last or self.number > 1:
            yield None if too_long else whole
