"""DOCX: the text of Word, with what tracked changes inserted and without what they deleted.

Content controls, text boxes, formulas and notes are part of the text. Comments, hidden text, headers and footers
aren't.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from tasks.text.documents.blocks import Block, heading, item, joined, table
from tasks.text.documents.mail import page_of
from tasks.text.documents.markup import blocks_of
from tasks.text.documents.package import Package, tag, value
from tasks.text.scripts import Script, shifted

LEFT_OUT = {
    "del", "moveFrom", "pPr", "rPr", "tblPr", "tblGrid", "trPr", "tcPr", "sectPr", "instrText", "delText",
    "delInstrText", "rt", "sdtPr", "sdtEndPr", "commentRangeStart", "annotationRef", "footnoteRef", "endnoteRef",
}  # fmt: skip
SIGNS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
NOTES = {"footnoteReference": "footnotes", "endnoteReference": "endnotes"}
BETWEEN = {"num": "/", "sup": "^", "sub": "_"}  # before or after these parts of a formula
SCRIPTS: dict[str, Script] = {"superscript": "sup", "subscript": "sub"}
MHTML = (".mht", ".mhtml")
PAGES = (".htm", ".html", ".xhtml", *MHTML)
OFF = ("0", "false", "off")


class Style(NamedTuple):
    """What a style of paragraphs says."""

    name: str
    based_on: str | None
    level: int | None
    numbering: tuple[str, int] | None


def read_docx(package: Package) -> dict[str, Any]:
    """The text and metadata of a document. Raises BadDocument."""
    return _Document(package).read()


class _Document:
    def __init__(self, package: Package) -> None:
        self._package = package
        self._main = package.main("word/document.xml")
        self._styles = _styles(package, self._main)
        self._formats = _formats(package, self._main)
        self._counts: Counter[tuple[str, int]] = Counter()
        self._texts = {
            (kind, value(note, "id")): note
            for kind in NOTES.values()
            for root in package.related(self._main, kind)
            for note in root
        }
        self._notes: dict[tuple[str, str | None], int] = {}

    def read(self) -> dict[str, Any]:
        """See `read_docx`."""
        root = self._package.root(self._main)
        blocks = [block for child in root if tag(child) == "body" for block in self._blocks(child)]
        notes: list[str] = []
        while len(notes) < len(self._notes):  # a note may refer to another
            key = list(self._notes)[len(notes)]
            notes.append(joined(self._blocks(self._texts[key])))
        return {"text": joined(blocks, notes), **self._package.properties()}

    def _blocks(self, parent: Any) -> Iterator[Block]:
        for child in parent:
            name = tag(child)
            if name == "p":
                yield from self._paragraph(child)
            elif name == "tbl":
                yield table(self._rows(child))
            elif name == "altChunk":
                yield from self._chunk(child)
            elif name not in LEFT_OUT:
                yield from self._blocks(_chosen(child))

    def _chunk(self, chunk: Any) -> Iterator[Block]:
        """The blocks of a page within a document, as programs write that make Word's files of HTML."""
        relation = self._package.relations(self._main).get(value(chunk, "id") or "")
        if relation and relation.part.lower().endswith(PAGES) and relation.part in self._package.names:
            content = self._package.part(relation.part)
            yield from blocks_of(page_of(content) if relation.part.lower().endswith(MHTML) else content, relation.part)

    def _rows(self, parent: Any) -> Iterator[list[str]]:
        for child in parent:
            name = tag(child)
            if name == "tr":
                if not any(tag(mark) == "del" for row in child if tag(row) == "trPr" for mark in row):
                    yield [joined(self._blocks(cell)) for cell in _cells(child)]
            elif name not in LEFT_OUT:
                yield from self._rows(child)

    def _paragraph(self, paragraph: Any) -> Iterator[Block]:
        boxes: list[Any] = []
        text = "".join(self._inline(paragraph, boxes))
        level, numbering = self._form(paragraph)
        if not text.strip():
            pass
        elif level is not None:
            yield heading(level + 1, text)
        elif numbering and (form := self._formats.get(numbering)) is not None:
            number, depth = numbering
            for deeper in range(depth + 1, 9):
                del self._counts[number, deeper]
            self._counts[numbering] += 1
            yield item(depth, text, None if form == "bullet" else self._counts[numbering])
        else:
            yield Block(text)
        for box in boxes:
            yield from self._blocks(box)

    def _form(self, paragraph: Any) -> tuple[int | None, tuple[str, int] | None]:
        """The level of a heading, and the list that a paragraph is in with the level there."""
        own = next((child for child in paragraph if tag(child) == "pPr"), None)
        style, level, numbering = _properties(own if own is not None else ())
        seen = set[str | None]()
        while style in self._styles and style not in seen:
            seen.add(style)
            found = self._styles[style]
            level = found.level if level is None else level
            numbering = found.numbering if numbering is None else numbering
            style = found.based_on
        return (None if level == 9 else level), (numbering if numbering and numbering[0] != "0" else None)

    def _inline(self, parent: Any, boxes: list[Any]) -> Iterator[str]:
        for child in parent:
            name = tag(child)
            if name == "t":
                yield child.text or ""
            elif name in SIGNS:
                yield SIGNS[name]
            elif name in NOTES:
                key = NOTES[name], value(child, "id")
                if key in self._texts:
                    yield f"[^{self._notes.setdefault(key, len(self._notes) + 1)}]"
            elif name == "txbxContent":
                boxes.append(child)
            elif name in LEFT_OUT or (name == "r" and _hidden(child)):
                continue
            else:
                inner = "".join(self._inline(_chosen(child), boxes))
                if name == "r" and (script := _script(child)):
                    inner = shifted(inner, script)
                if name == "num":
                    inner = f"{inner}/"
                elif name in BETWEEN and inner:
                    inner = BETWEEN[name] + inner
                yield inner


def _chosen(element: Any) -> Any:
    """The first of several forms of the same content, as Word writes for its predecessors."""
    return element[0] if tag(element) == "AlternateContent" and len(element) else element


def _cells(row: Any) -> Iterator[Any]:
    for child in row:
        if tag(child) == "tc":
            yield child
        elif tag(child) not in LEFT_OUT:
            yield from _cells(child)


def _marks(run: Any) -> Iterator[Any]:
    return (mark for child in run if tag(child) == "rPr" for mark in child)


def _hidden(run: Any) -> bool:
    return any(tag(mark) == "vanish" and value(mark, "val") not in OFF for mark in _marks(run))


def _script(run: Any) -> Script | None:
    """Whether a run stands above or below the line."""
    return next((SCRIPTS.get(value(mark, "val") or "") for mark in _marks(run) if tag(mark) == "vertAlign"), None)


def _properties(marks: Any) -> tuple[str | None, int | None, tuple[str, int] | None]:
    """The style, the level of a heading and the list that properties of a paragraph name."""
    found = {tag(mark): mark for mark in marks}
    style = value(found["pStyle"], "val") if "pStyle" in found else None
    level = _number(value(found["outlineLvl"], "val")) if "outlineLvl" in found else None
    numbering = None
    if "numPr" in found:
        inner = {tag(mark): value(mark, "val") or "" for mark in found["numPr"]}
        if "numId" in inner:
            numbering = inner["numId"], min(8, _number(inner.get("ilvl")) or 0)
    return style, level, numbering


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 4 else None


def _styles(package: Package, main: str) -> dict[str | None, Style]:
    found: dict[str | None, Style] = {}
    for root in package.related(main, "styles"):
        for style in root:
            inner = {tag(child): child for child in style}
            name = (value(inner["name"], "val") or "").lower() if "name" in inner else ""
            based_on = value(inner["basedOn"], "val") if "basedOn" in inner else None
            _, level, numbering = _properties(inner.get("pPr", ()))
            if level is None and name.startswith("heading "):
                level = (_number(name.removeprefix("heading ")) or 1) - 1
            elif name == "title":
                level = 0
            found[value(style, "styleId")] = Style(name, based_on, level, numbering)
    return found


def _formats(package: Package, main: str) -> dict[tuple[str, int], str]:
    """The format of the numbers of each list and level: bullet, decimal and so on."""
    abstract: dict[str | None, dict[int, str]] = {}
    found: dict[tuple[str, int], str] = {}
    for root in package.related(main, "numbering"):
        for element in root:
            if tag(element) == "abstractNum":
                abstract[value(element, "abstractNumId")] = {
                    _number(value(level, "ilvl")) or 0: value(form, "val") or ""
                    for level in element
                    for form in level
                    if tag(form) == "numFmt"
                }
        for element in root:
            for child in element if tag(element) == "num" else ():
                if tag(child) == "abstractNumId":
                    levels = abstract.get(value(child, "val"), {})
                    found |= {(value(element, "numId") or "", level): form for level, form in levels.items()}
    return found
