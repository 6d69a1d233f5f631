"""Applies all repairs to texts, in order and repeatedly, until nothing changes.

Mojibake comes before control characters, because they identify it. One repair can expose work for another (a zero-width
space within mojibake, a line end within an entity), so they are repeated to a fixed point: repairing twice changes
nothing. Most texts need no repair and never leave their Arrow column.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tasks.filter.repair.characters import INVISIBLE, repair_characters
from tasks.filter.repair.encoding import ENTITY, mojibake, repair_encoding, repair_entities
from tasks.filter.repair.line_breaks import WRAPPED, repair_line_breaks
from tasks.stage.config import StageConfig

BLANKS = " \t\u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u202f\u205f\u3000"
# In RE2's syntax: texts without a match need no repair
SUPERFLUOUS = r"[ \t\x{a0}\x{1680}\x{2000}-\x{200a}\x{202f}\x{205f}\x{3000}](?:\n|\z)|\n{4}"
_BLANK_LINES = re.compile(r"\n{4,}")


class RepairConfig(StageConfig):
    """Repairs of texts. Each changes the text for all later stages, and the ledger records it."""

    encoding: bool = Field(
        True, description="undo mojibake, text decoded with the wrong encoding: â€™ becomes ’ (ftfy)"
    )
    html_entities: bool = Field(
        False,
        description="decode HTML entities such as &eacute;, except in texts with a <, which may be about HTML (ftfy)",
    )
    control_characters: bool = Field(
        True, description="remove ineffective control and invisible characters, and turn all line ends into line feeds"
    )
    white_space: bool = Field(
        True, description="remove trailing white space, and blank lines after the second in a row"
    )
    line_breaks: bool = Field(
        False, description="unwrap paragraphs that were wrapped at a fixed width, and rejoin hyphenated words"
    )


def repair_white_space(text: str) -> tuple[str, int]:
    """The text without superfluous white space, and the number of characters removed."""
    # Line by line, because a regular expression for trailing blanks takes quadratic time
    lines = [line.rstrip(BLANKS) for line in text.split("\n")]
    plain = _BLANK_LINES.sub("\n\n\n", "\n".join(lines))
    return plain, len(text) - len(plain)


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
