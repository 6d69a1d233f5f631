"""JSON from files, and JSON Lines: one value a line, where only a line feed ends a line.

`str.splitlines` also ends lines at U+2028, U+2029, U+0085 and others, which JSON strings may hold unescaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO


def parse_json(data: str | bytes) -> Any:
    """The value. Raises ValueError for anything but JSON in UTF-8, and for values nested too deep."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def read_json_lines(path: Path) -> Iterator[Any]:
    """The values of a file, in order. Raises ValueError, with the line's number, for a line that is not JSON, and for
    half a surrogate pair, which JSON allows and UTF-8 can't encode."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                value = parse_json(line)
                if not line.isascii() or b"\\ud" in line or b"\\uD" in line:
                    as_line(value).encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"line {number}: it has half of a character (a lone surrogate)") from error
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number}: {error}") from error
            yield value


def write_json_lines(path: Path, rows: Iterable[object]) -> None:
    """Write values with sorted keys, as UTF-8."""
    with open_lines(path) as file:
        file.writelines(map(as_line, rows))


def open_lines(path: Path) -> TextIO:
    """Open a new file for lines, and create the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("w", encoding="utf-8", newline="\n")


def as_line(row: object) -> str:
    """A value as a line, with sorted keys."""
    return json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n"
