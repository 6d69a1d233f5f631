"""The file of labels: JSON Lines, a line and a flush per answer, which can be in `files` of a trained classifier.

A file has one labeller and one question: otherwise a text could teach both classes. Undo cuts off the last line. A line
that a kill cut short is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from storage.errors import ConfigError, SourceError
from storage.shards.lines import as_line, parse_json
from tasks.filter.labels.sample import Item

Label = Literal["yes", "no", "skip"]
LABELS: tuple[Label, ...] = ("yes", "no", "skip")
FIELDS = ("id", "text", "label", "labeller")


def read_labels(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of labels, without half a line at its end. Raises SourceError for a file that can't be read or
    a line that isn't a label."""
    try:
        *lines, last = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SourceError(f"{path} can't be read: {error.strerror}.", "Choose another file of labels.") from error
    rows = []
    for number, line in enumerate([*lines, last] if _row(last) else lines, 1):
        row = _row(line)
        if row is None:
            raise SourceError(f"{path}, line {number} is not a label.", "Remove the line, or restore the file.")
        rows.append(row)
    return rows


class LabelFile:
    """The file of one labeller's answers to a question. Raises ConfigError for a file by another labeller, or with
    answers to another question."""

    def __init__(self, path: Path, labeller: str, question: str) -> None:
        if not labeller or len(labeller) > 120 or not labeller.isprintable():
            raise ConfigError(
                "The labeller's name is empty, too long or not printable.", "Use up to 120 letters: --labeller ann."
            )
        self.path, self.labeller, self.question = path, labeller, question
        self.rows = read_labels(path)
        others = sorted({row["labeller"] for row in self.rows} - {labeller})
        if others:
            raise ConfigError(
                f"{path} contains labels by {', '.join(others)}.",
                "Choose another file with --labels, or another --labeller.",
            )
        questions = sorted({str(row.get("question", question)) for row in self.rows} - {question})
        if questions:
            raise ConfigError(
                f"{path} contains answers to another question: {questions[0]}", "Choose another file with --labels."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        # Drops half a line at the end, so that the next label begins a new line
        whole = "".join(as_line(row) for row in self.rows).encode()
        if path.exists() and path.read_bytes() != whole:
            path.write_bytes(whole)

    @property
    def labelled(self) -> set[str]:
        """The IDs of the excerpts that have a label."""
        return {row["id"] for row in self.rows}

    def add(self, item: Item, label: Label, **more: str) -> None:
        """Write a label, and flush it to the disk."""
        row = {
            **item._asdict(),
            "label": label,
            "labeller": self.labeller,
            "question": self.question,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            **more,
        }
        with self.path.open("ab") as file:
            before = file.tell()
            try:
                file.write(as_line(row).encode())
                file.flush()
                os.fsync(file.fileno())
            except OSError:  # a full disk must not leave half a line in the middle of the file
                os.truncate(self.path, before)
                raise
        self.rows.append(row)

    def undo(self) -> dict[str, Any] | None:
        """Remove the last label and return its row, or None if there are no labels."""
        if not self.rows:
            return None
        row = self.rows.pop()
        os.truncate(self.path, self.path.stat().st_size - len(as_line(row).encode()))
        return row


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in FIELDS):
        return None
    return row if row["label"] in LABELS else None


class Agreement(NamedTuple):
    """The number of texts that both labelled yes or no, the share of equal labels, and Cohen's kappa. Share and kappa
    are None without texts. Kappa is also None if both labellers gave every text the same label."""

    texts: int
    equal: float | None
    kappa: float | None


def agreement(first: Iterable[Mapping[str, Any]], second: Iterable[Mapping[str, Any]]) -> Agreement:
    """The agreement between the rows of two files of labels."""
    sides = [{row["id"]: row["label"] == "yes" for row in rows if row["label"] != "skip"} for rows in (first, second)]
    shared = [(sides[0][name], sides[1][name]) for name in sides[0] if name in sides[1]]
    if not shared:
        return Agreement(0, None, None)
    size = len(shared)
    equal = sum(one == other for one, other in shared) / size
    yes = [sum(side) / size for side in zip(*shared, strict=True)]
    chance = yes[0] * yes[1] + (1 - yes[0]) * (1 - yes[1])
    return Agreement(size, equal, (equal - chance) / (1 - chance) if chance < 1 else None)
