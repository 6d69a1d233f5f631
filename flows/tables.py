"""What is shown at a terminal: tables, all in one style, and no control characters of what is printed in them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from storage.errors import harmless


class Terminal(Console):
    """A console whose text, such as names in a store, can't steer the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments of what is printed; those that are a command to the terminal come from Rich itself."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


def new_table(*heads: str, right: Collection[str] = (), title: str = "", show_header: bool = True) -> Table:
    """An empty table with these columns, of which those in `right` are aligned to the right; no frame, a dim head."""
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
