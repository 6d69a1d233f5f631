"""Conversations as rows of a file that `download` reads as instructions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from storage.errors import BadDocument, ConfigError
from storage.shards.lines import as_line, read_json_lines


def save(path: Path, messages: list[dict[str, str]]) -> int:
    """Add a conversation to a file of conversations, new or not, as its last row. Returns the number of rows. Raises
    ConfigError for a conversation that training would refuse, and for a file of something else."""
    from tasks.download.pairs import instruction

    try:
        instruction({"messages": messages}, "chat")
    except BadDocument as error:
        raise ConfigError(f"The conversation can't be a row: {error.message}", "Remove the turn with /undo.") from error
    rows = _rows(path) if path.exists() else []
    try:
        with path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(as_line({"messages": messages}))
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror}.", "Name another file.") from error
    return len(rows) + 1


def load(path: Path) -> list[dict[str, str]]:
    """The last conversation of a file, in any form of instructions. Raises ConfigError."""
    from tasks.download.pairs import instruction

    rows = _rows(path)
    try:
        messages: list[dict[str, str]] = instruction(rows[-1], "chat").pair["messages"]
    except (BadDocument, IndexError) as error:
        why = error.message if isinstance(error, BadDocument) else "it is empty."
        raise ConfigError(f"{path} lacks a conversation in its last row: {why}", "Name another file.") from error
    return messages


def _rows(path: Path) -> list[Any]:
    try:
        rows = list(read_json_lines(path))
        if all(isinstance(row, dict) for row in rows) and (not rows or path.read_bytes().endswith(b"\n")):
            return rows
        why = "a line is not an object" if rows and not isinstance(rows[-1], dict) else "its last line doesn't end"
    except OSError as error:
        why = error.strerror or str(error)
    except ValueError as error:
        why = str(error)
    raise ConfigError(f"{path} is not a file of conversations: {why}.", "Name another file.")
