"""The whole text of XHTML, as in a chapter of a book. Of web pages, `tasks/text/web` finds the main text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from storage.errors import BadDocument
from tasks.text.documents.blocks import SPACES, Block, heading, item, joined, table
from tasks.text.documents.package import DEEP, tag
from tasks.text.scripts import shifted
from tasks.text.web.encoding import decode

BLANKS = re.compile(" {2,}")
LEFT_OUT = {"head", "script", "style", "template", "noscript", "rt", "rp", "svg", "nav", "audio", "video", "object"}
HEADINGS = {f"h{level}": level for level in range(1, 7)}
INLINE = {
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "br", "cite", "code", "data", "del", "dfn", "em", "font", "i",
    "img", "ins", "kbd", "label", "mark", "math", "q", "ruby", "rb", "s", "samp", "small", "span", "strike", "strong",
    "sub", "sup", "time", "tt", "u", "var", "wbr",
}  # fmt: skip


def blocks_of(html: bytes, name: str) -> list[Block]:
    """The blocks of a page, however it is written. Raises BadDocument."""
    from lxml import etree

    parser = etree.HTMLParser(no_network=True, remove_comments=True, remove_pis=True, encoding="utf-8")
    try:
        root = etree.fromstring(decode(html, None)[0].encode(), parser)
    except (etree.XMLSyntaxError, ValueError):  # nothing in it
        return []
    if any(DEEP in entry.message for entry in parser.error_log):
        raise BadDocument("nested_too_deep", why=name)
    return [*_blocks(root)] if root is not None else []


def _blocks(element: Any, depth: int = -1) -> Iterator[Block]:
    """The blocks of an element that has blocks in it. `depth` is the number of lists around it, less one."""
    line: list[str] = [element.text or ""]  # of inline elements, up to the next block
    number = 0
    for child in element:
        name = tag(child)
        if _is_inline(child, name):
            line += _inline(child)
        else:
            yield Block(_flowed(line))
            line = []
            number += name == "li"
            yield from _block(child, name, depth, number if tag(element) == "ol" else None)
        line.append(child.tail or "")
    yield Block(_flowed(line))


def _block(element: Any, name: str, depth: int, number: int | None) -> Iterator[Block]:
    if name in HEADINGS:
        yield heading(HEADINGS[name], joined(_blocks(element)))
    elif name == "pre":
        yield Block("".join(element.itertext()).strip("\n"))
    elif name == "table":
        yield table(_rows(element))
    elif name in ("ul", "ol"):
        yield from _blocks(element, depth + 1)
    elif name == "li":
        first, *rest = [block for block in _blocks(element, max(depth, 0)) if block.text.strip()] or [Block("")]
        yield first if first.item else item(max(depth, 0), first.text, number)
        yield from (block if block.item else Block(f"{'  ' * (depth + 1)}{block.text}", item=True) for block in rest)
    else:
        yield from _blocks(element, depth)


def _rows(element: Any) -> Iterator[list[str]]:
    for child in element:
        name = tag(child)
        if name == "tr":
            yield [joined(_blocks(cell)) for cell in child if tag(cell) in ("td", "th")]
        elif name in ("thead", "tbody", "tfoot"):
            yield from _rows(child)
        elif name == "caption":
            yield [joined(_blocks(child))]


def _is_inline(element: Any, name: str) -> bool:
    """Whether an element is within a line, or says nothing."""
    if name in LEFT_OUT or name in ("math", ""):
        return True
    return name in INLINE and all(_is_inline(child, tag(child)) for child in element)


def _inline(element: Any) -> Iterator[str]:
    name = tag(element)
    if name == "math":
        tex = [each.text for each in element.iter() if tag(each) == "annotation" and "tex" in each.get("encoding", "")]
        yield f"${tex[0].strip()}$" if tex and tex[0] else "".join("".join(element.itertext()).split())
    elif (name == "sup" or name == "sub") and len(element) < 2:  # not if it has several parts, as a fraction has
        yield shifted("".join(element.itertext()), "sup" if name == "sup" else "sub")
    elif name and name not in LEFT_OUT:
        yield "\n" if name == "br" else element.text or ""
        for child in element:
            yield from _inline(child)
            yield child.tail or ""


def _flowed(line: list[str]) -> str:
    """Pieces of a line with single spaces. Only a line break stays one."""
    pieces = (piece if piece == "\n" else SPACES.sub(" ", piece) for piece in line)
    return "\n".join(part.strip(" ") for part in BLANKS.sub(" ", "".join(pieces)).split("\n")).strip("\n")
