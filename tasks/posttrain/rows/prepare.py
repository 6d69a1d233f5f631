"""Rows from JSON Lines files to rendered rows for training and validation, with the dropped ones counted by reason."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from storage.errors import EmptyOutput, SourceError
from storage.shards.lines import read_json_lines
from tasks.posttrain.rows.form import Dropped, Row


def read_rows(paths: Iterable[Path]) -> Iterator[Row]:
    """The rows of JSON Lines files, in order. Raises SourceError for a line that is not JSON."""
    for path in paths:
        try:
            yield from read_json_lines(path)
        except ValueError as error:
            raise SourceError(f"{path.name} is not JSON: {error}.", "Rebuild the artifact that holds it.") from error


def prepare(
    rows: Iterable[Row], render: Callable[[Row], Row], *, validation_share: float, max_dropped_share: float
) -> tuple[list[Row], list[Row], Counter[str]]:
    """Rendered rows for training and for validation, and the number dropped by reason.

    Raises EmptyOutput when none is left to train on, or when more than the allowed share was dropped.
    """
    train: list[Row] = []
    validation: list[Row] = []
    dropped: Counter[str] = Counter()
    for row in rows:
        try:
            rendered = render(row)
        except Dropped as reason:
            dropped[str(reason)] += 1
            continue
        (validation if _is_held_out(row["id"], validation_share) else train).append(rendered)
    total = len(train) + len(validation) + dropped.total()
    if not total:
        raise EmptyOutput("There are no pairs to train on.", "Give download a source of that role.")
    if not train or dropped.total() > max_dropped_share * total:
        raise EmptyOutput(
            f"Of {total:,} pairs {dropped.total():,} can't be used ({dict(dropped)}); {len(train):,} are left.",
            "Raise max_length (and the model's context), provide shorter pairs, or raise max_dropped_share.",
        )
    return train, validation, dropped


def _is_held_out(row_id: str, share: float) -> bool:
    drawn = hashlib.sha256(f"pair {row_id}".encode()).digest()
    return int.from_bytes(drawn[:8]) < share * 2.0**64
