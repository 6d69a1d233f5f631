"""JSON Lines: one value a line, and a line ends at a line feed only.

`str.splitlines` also ends one at U+2028, U+2029, U+0085 and others, which stand unescaped in JSON strings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def read_json_lines(path: Path) -> Iterator[Any]:
    """The values of a file, in order. Raises ValueError for a line that is not JSON."""
    with path.open("rb") as file:
        for line in file:
            yield json.loads(line)


def write_json_lines(path: Path, rows: Iterable[object]) -> None:
    """Write values with sorted keys, as UTF-8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows)
