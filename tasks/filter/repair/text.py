"""Applies all repairs to texts, in order and repeatedly, until nothing changes.

Mojibake comes before control characters, because they identify it. One repair can expose work for another (a zero-width
space within mojibake, a line end within an entity), so they are repeated to a fixed point: repairing twice changes
nothing. Most texts need no repair and never leave their Arrow column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tasks.filter.repair.characters import INVISIBLE, repair_characters
from tasks.filter.repair.config import RepairConfig
from tasks.filter.repair.encoding import ENTITY, mojibake, repair_encoding, repair_entities
from tasks.filter.repair.line_breaks import WRAPPED, repair_line_breaks
from tasks.filter.repair.white_space import SUPERFLUOUS, repair_white_space


class Repair(NamedTuple):
    """A repair. Texts that don't match `suspect`, a pattern for RE2, don't need it. `apply` also counts changed
    characters."""

    name: str
    suspect: str
    apply: Callable[[str], tuple[str, int]]


def repairs_of(config: RepairConfig) -> list[Repair]:
    """The repairs of a config, in order of application."""
    repairs: list[Repair] = []
    if config.html_entities:
        repairs.append(Repair("html_entities", ENTITY, repair_entities))
    if config.encoding:
        repairs.append(Repair("encoding", mojibake(), repair_encoding))
    if config.control_characters:
        repairs.append(Repair("control_characters", INVISIBLE, repair_characters))
    if config.white_space:
        repairs.append(Repair("white_space", SUPERFLUOUS, repair_white_space))
    if config.line_breaks:
        repairs.append(Repair("line_breaks", WRAPPED, repair_line_breaks))
    return repairs


class Repaired(NamedTuple):
    """A changed text, and the number of characters that each repair changed."""

    text: str
    changed: Counter[str]


def repair_texts(texts: pa.Array, repairs: Sequence[Repair]) -> dict[int, Repaired]:
    """Row → repaired text, for the rows of a string column that need it, ascending."""
    by_row: dict[int, Repaired] = {}
    rows, column = list(range(len(texts))), texts
    while rows:
        touched = set()
        for repair in repairs:
            for place in pc.indices_nonzero(pc.match_substring_regex(column, repair.suspect)).to_pylist():
                row = rows[place]
                before, counts = by_row[row] if row in by_row else Repaired(texts[row].as_py(), Counter())
                after, number = repair.apply(before)
                if number:
                    counts[repair.name] += number
                    by_row[row] = Repaired(after, counts)
                    touched.add(row)
        rows = sorted(touched)
        column = pa.array([by_row[row].text for row in rows], pa.string())
    return dict(sorted(by_row.items()))
