"""Batches of rows saved in a scratch folder as they finish, so that a run can resume."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from storage.files.flush import flush
from storage.shards.lines import read_json_lines, write_json_lines

Row = dict[str, Any]


def kept_rows(path: Path, number: int, make: Callable[[], Iterable[Row]]) -> list[Row]:
    """The `number` rows of a batch, from the file, or made by `make` and saved there. Rebuilds a damaged file."""
    rows = _whole(path, number)
    if rows is None:
        part = path.with_suffix(".part")
        write_json_lines(part, make())
        flush(part)
        part.replace(path)
        rows = [*read_json_lines(path)]
    return rows


def _whole(path: Path, number: int) -> list[Row] | None:
    try:
        rows = [*read_json_lines(path)]
    except (FileNotFoundError, ValueError):
        return None
    return rows if len(rows) == number and all(isinstance(row, dict) for row in rows) else None
