"""A page of sections for a browser: one file that asks for nothing, with the same numbers as JSON in it.

A page is a list of sections, and a section a list of blocks. Every text is escaped by the template, and every chart has
its numbers as a table behind it. Scripts are Vega's and ours, which the page's policy admits by their digests: script
in a document, or in a name, can't run even if it got into the page. Vega's expressions are interpreted, not evaluated.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.checks.extras import need

STATIC = Path(__file__).parent / "static"
EXTRA = "report"
LONGEST_TABLE = 60  # rows behind a chart: the JSON has all
SHORT = 18  # characters
NUMBER = re.compile(r"[-+−~]?[\d,.]+(?:e-?\d+)?(?: ?[%\w]{1,4})?(?: \d+ \w{1,3})?")  # with a unit, or a time
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True)
class Bar:
    """A number in a table with a bar of `share` of the cell, from 0 to 1."""

    text: str
    share: float

    @property
    def width(self) -> str:
        """For SVG."""
        return f"{100 * min(1.0, max(0.0, self.share)):.2f}%"


@dataclass(frozen=True)
class Link:
    """A text that leads to a place on the page."""

    text: str
    to: str


Cell = str | int | float | None | Bar | Link


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    note: bool = False
    kind: str = "text"


@dataclass(frozen=True)
class Heading:
    """The title of the blocks that follow."""

    text: str
    kind: str = "heading"


@dataclass(frozen=True)
class Figure:
    """A number that stands out, with its name and a remark."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Figures:
    """A row of them."""

    rows: Sequence[Figure]
    kind: str = "figures"


@dataclass(frozen=True)
class Table:
    """Rows with equal keys. Numbers go to the right."""

    rows: Sequence[Mapping[str, Cell]]
    title: str = ""
    kind: str = "table"

    @property
    def heads(self) -> list[str]:
        """The columns, of all rows."""
        return list(dict.fromkeys(head for row in self.rows for head in row))

    def right(self, head: str) -> bool:
        """Whether a column holds numbers."""
        values = [row.get(head) for row in self.rows if row.get(head) not in (None, "")]
        return bool(values) and all(isinstance(value, int | float | Bar) or _is_number(value) for value in values)

    def style(self, head: str, value: Cell) -> str:
        """The class of a cell. A short one stays on one line."""
        return "right" if self.right(head) else "short" if len(cell(value)) <= SHORT else ""


@dataclass(frozen=True)
class Chart:
    """A chart in Vega-Lite over rows, which are the table behind it too. `said` is what a reader sees in it."""

    title: str
    spec: Mapping[str, Any]
    rows: Sequence[Mapping[str, Cell]]
    said: str = ""
    hint: str = ""
    kind: str = "chart"

    @property
    def table(self) -> Table:
        """Its numbers, of a long curve evenly chosen rows."""
        stride = -(-len(self.rows) // LONGEST_TABLE)
        return Table(self.rows[::stride] if stride > 1 else self.rows)

    @property
    def json(self) -> str:
        """The whole specification."""
        return embedded({**self.spec, "data": {"values": [_present(row) for row in self.rows]}})


@dataclass(frozen=True)
class Passage:
    """A foreign text with its origin."""

    head: str
    text: str
    kind: str = "passage"


@dataclass(frozen=True)
class Fold:
    """Blocks that a reader unfolds."""

    title: str
    blocks: Sequence[Block]
    name: str = ""
    kind: str = "fold"


@dataclass(frozen=True)
class Markup:
    """SVG that this package made."""

    svg: str
    title: str
    kind: str = "markup"


Block = Text | Heading | Figures | Table | Chart | Passage | Fold | Markup


@dataclass(frozen=True)
class Section:
    """A part of a page, which its contents name."""

    title: str
    blocks: Sequence[Block]

    @property
    def name(self) -> str:
        """Its anchor."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Page:
    """A page: what it is about, its sections, and all its numbers as JSON."""

    title: str
    kicker: str
    lede: str
    figures: Sequence[Figure]
    sections: Sequence[Section]
    data: Any = field(repr=False)

    def render(self) -> str:
        """HTML. Raises ConfigError without the packages that draw."""
        need(EXTRA, "A report as a page")
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        jinja = Environment(
            loader=FileSystemLoader(STATIC), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        jinja.filters["cell"] = cell
        scripts = [vega(), (STATIC / "page.js").read_text(encoding="utf-8")]
        style = (STATIC / "page.css").read_text(encoding="utf-8")
        policy = (
            f"default-src 'none'; script-src {' '.join(map(_digest, scripts))}; style-src {_digest(style)}; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        )
        return jinja.get_template("page.html").render(
            page=self, policy=policy, style=style, scripts=scripts, licence=licence(), json=embedded(self.data)
        )


def _present(row: Mapping[str, Cell]) -> dict[str, Cell]:
    return {name: value for name, value in row.items() if value is not None}


def _digest(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def embedded(value: Any) -> str:
    """JSON that is safe within a script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return "".join(ESCAPES.get(sign, sign) for sign in text)


@functools.cache
def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return str(bundle).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def licence() -> str:
    """The licence of Vega, which asks to be passed on with it."""
    return (STATIC / "vega-licence.txt").read_text(encoding="utf-8")


def cell(value: Cell) -> str:
    """A cell's text."""
    if value is None:
        return ""
    if isinstance(value, Bar | Link):
        return value.text
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _is_number(value: object) -> bool:
    return isinstance(value, str) and bool(
        re.fullmatch(r"[-+−~]?[\d,.]+(?:e-?\d+)?(?: ?[%\w]{1,4})?(?: \d+ \w{1,3})?", value)
    )
