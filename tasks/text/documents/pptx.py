"""PPTX: the slides in their order, each with its title first, its tables and the speaker's notes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tasks.text.documents.blocks import Block, heading, item, joined, table
from tasks.text.documents.package import Package, tag, value
from tasks.text.scripts import shifted

TITLES = ("title", "ctrTitle")
LEFT_OUT = ("sldNum", "dt", "ftr", "hdr", "sldImg")  # placeholders that every slide repeats


def read_pptx(package: Package) -> dict[str, Any]:
    """The text and metadata of a presentation. Raises BadDocument."""
    main = package.main("ppt/presentation.xml")
    slides = package.relations(main)
    blocks: list[Block] = []
    order = [each for child in package.root(main) if tag(child) == "sldIdLst" for each in child]
    for each in order:
        relation = slides.get(_id(each))
        if relation and relation.part in package.names:
            blocks += _slide(package, relation.part)
            for notes in package.related(relation.part, "notesSlide"):
                blocks += [block for shape in _shapes(notes) for block in _text(shape)]
    return {"text": joined(blocks), "slides": len(order), **package.properties()}


def _id(slide: Any) -> str:
    """The id of the relation to a slide. The slide has one of its own too, without a namespace."""
    return next((text for name, text in slide.attrib.items() if name.endswith("}id")), "")


def _slide(package: Package, part: str) -> Iterator[Block]:
    shapes = [*_shapes(package.root(part))]
    for shape in sorted(shapes, key=lambda shape: _place(shape) not in TITLES):
        title = _place(shape) in TITLES
        blocks = [*_text(shape)]
        if title:
            yield heading(2, " ".join(block.text for block in blocks))
        else:
            yield from blocks
    for diagram in package.related(part, "diagramData"):  # SmartArt
        points = (point for point in diagram.iter() if tag(point) == "pt")
        yield from (Block(text, item=True) for point in points if (text := joined(_paragraphs(point)).strip()))


def _shapes(root: Any) -> Iterator[Any]:
    """Shapes with text and tables, those of groups too, without what every slide repeats."""
    for child in root:
        if tag(child) in ("sp", "graphicFrame", "cxnSp"):
            if _place(child) not in LEFT_OUT:
                yield child
        elif tag(child) == "AlternateContent":
            yield from _shapes(child[0] if len(child) else ())
        else:
            yield from _shapes(child)


def _place(shape: Any) -> str | None:
    """The type of the placeholder that a shape fills, if it is one."""
    for inner in shape:
        if tag(inner) == "nvSpPr":
            return next((value(mark, "type") or "body" for mark in inner.iter() if tag(mark) == "ph"), None)
    return None


def _text(shape: Any) -> Iterator[Block]:
    tables = [element for element in shape.iter() if tag(element) == "tbl"]
    for each in tables:
        rows = (row for row in each if tag(row) == "tr")
        yield table([" ".join(_lines(cell)) for cell in row if tag(cell) == "tc"] for row in rows)
    if not tables:
        yield Block("\n".join(block.text for block in _paragraphs(shape) if block.text.strip()))


def _lines(cell: Any) -> Iterator[str]:
    return (block.text for block in _paragraphs(cell))


def _paragraphs(shape: Any) -> Iterator[Block]:
    for paragraph in (element for element in shape.iter() if tag(element) == "p"):
        properties = next((child for child in paragraph if tag(child) == "pPr"), None)
        level = int(value(properties, "lvl") or 0) if properties is not None else 0
        text = "".join(_runs(paragraph))
        bullet = properties is not None and any(tag(mark) in ("buChar", "buAutoNum", "buBlip") for mark in properties)
        yield item(level, text) if level or bullet else Block(text.strip(), item=bool(level))


def _runs(paragraph: Any) -> Iterator[str]:
    for element in paragraph.iter():
        name = tag(element)
        if name == "t":
            properties = element.getprevious()
            place = value(properties, "baseline") if properties is not None else None  # in thousandths
            text = element.text or ""
            yield shifted(text, "sub" if place[0] == "-" else "sup") if place and place[0] != "0" else text
        elif name in ("br", "tab"):
            yield "\n" if name == "br" else "\t"
