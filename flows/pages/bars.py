"""Bars as an SVG in Markdown, drawn in a millisecond: a plotting library would take a second to import.

Every run draws them, even one of two seconds. The text has the grey of all figures.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from tasks.stage.display.figures import BLUE, GREY, ORANGE

ROW, BAR, FONT = 22, 14, 13  # pixels
LABEL, LONGEST, TEXT = 280, 270, 210  # of a row: its name, the longest bar, the text after the bar
COLOURS = {True: ORANGE, False: BLUE}
CHARACTERS = 40  # of a name


class Bar(NamedTuple):
    """One row: its name, its length in any unit, and the text after it."""

    name: str
    length: float
    text: str
    marked: bool = False


def draw_bars(rows: Sequence[Bar], title: str) -> str:
    """Rows of bars as a Markdown image. Every nonzero length is visible."""
    longest = max((row.length for row in rows), default=0.0) or 1.0
    parts = []
    for number, row in enumerate(rows):
        top = number * ROW
        width = max(2.0, LONGEST * row.length / longest) if row.length > 0 else 0.0
        name = row.name if len(row.name) <= CHARACTERS else f"{row.name[: CHARACTERS - 1]}…"
        base = top + BAR + 1
        parts += [
            f'<text x="{LABEL - 8}" y="{base}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LABEL}" y="{top + 3}" width="{width:.1f}" height="{BAR}" fill="{COLOURS[row.marked]}"/>',
            f'<text x="{LABEL + width + 6:.1f}" y="{base}">{escape(row.text)}</text>',
        ]
    size = f'width="{LABEL + LONGEST + TEXT}" height="{ROW * len(rows) + 4}"'
    font = f'font-family="sans-serif" font-size="{FONT}" fill="{GREY}"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>{"".join(parts)}</svg>'
    return f"![{title}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"
