"""`log.jsonl`: one row per training step, truncated when a run resumes from an earlier step."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from storage.errors import TrainingError
from storage.shards.lines import parse_json


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log, in order, without an incomplete last line. Raises TrainingError for an invalid line."""
    return _rows(path, path.read_bytes().split(b"\n")[:-1])


def drop_torn(path: Path) -> None:
    """Remove an incomplete last line, as a kill may leave it."""
    if path.is_file():
        data = path.read_bytes()
        os.truncate(path, data.rfind(b"\n") + 1)


def append_log(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows and flush them to disk, before the next checkpoint relies on them."""
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.flush()
        os.fsync(file.fileno())


def cut_log(path: Path, step: int) -> list[dict[str, Any]]:
    """Truncate the log to the rows up to `step`, and return these. Raises TrainingError if one is missing."""
    lines = path.read_bytes().split(b"\n")[:step] if step else []
    rows = _rows(path, lines)
    if [row.get("step") for row in rows] != list(range(1, step + 1)):
        raise TrainingError(
            f"{path} doesn't have every step up to {step}.", f"Delete {path.parent} to start from scratch."
        )
    draft = path.with_name(f"{path.name}.draft")
    draft.write_bytes(b"".join(line + b"\n" for line in lines))
    draft.rename(path)  # atomic: without its rows a checkpoint is worthless
    return rows


def _rows(path: Path, lines: Iterable[bytes]) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = parse_json(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise TrainingError(
                f"Line {number} of {path} is not a JSON object.", f"Delete {path.parent} to start from scratch."
            )
        rows.append(row)
    return rows
