"""Terminal output: tables in one style, and a console that prints no control characters of foreign text."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from storage.errors import harmless

WIDE = 200  # columns of what is piped


class Terminal(Console):
    """A console whose text, such as names in a store, can't control the terminal. With `wide`, piped output isn't
    wrapped."""

    def __init__(self, *, wide: bool = False, **options: Any) -> None:
        super().__init__(**options)
        if wide and not self.file.isatty():
            self.width = WIDE

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments to print. Only Rich itself makes those that control the terminal."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


def new_table(*heads: str, right: Collection[str] = (), title: str = "", show_header: bool = True) -> Table:
    """An empty table with these columns, those in `right` aligned to the right, without a frame and with a dim head."""
    table = Table(
        box=None,
        pad_edge=False,
        header_style="dim",
        show_header=show_header,
        title=title or None,
        title_justify="left",
        title_style="bold",
    )
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", overflow="fold")
    return table
