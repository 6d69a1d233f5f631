"""What is shown at a terminal: tables, all in one style, and text that somebody else wrote."""

from __future__ import annotations

from collections.abc import Collection

from rich.table import Table

# Control characters, and those that reorder what is shown (Unicode, UAX #9)
_CODES = (*range(32), *range(127, 160), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
STEERING = {code: "\N{REPLACEMENT CHARACTER}" for code in _CODES if chr(code) not in "\n\t"}


def harmless(text: str) -> str:
    """Text of a document or a model without the control characters that steer a terminal."""
    return text.translate(STEERING)


def new_table(*heads: str, right: Collection[str] = (), title: str = "", show_header: bool = True) -> Table:
    """An empty table with these columns, of which those in `right` are aligned to the right; no frame, a dim head."""
    table = Table(
        box=None, pad_edge=False, header_style="dim", show_header=show_header, title=title or None,
        title_justify="left", title_style="bold",
    )  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", overflow="fold")
    return table
