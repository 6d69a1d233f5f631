"""ODT: the text of LibreOffice, without comments and without what tracked changes deleted."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

from storage.errors import BadDocument
from tasks.text.documents.blocks import SPACES, Block, flat, heading, item, joined, table
from tasks.text.documents.package import Package, dublin_core, tag, value
from tasks.text.scripts import Script, shifted

LEFT_OUT = {  # inline or not
    "tracked-changes", "annotation", "annotation-end", "table-of-content", "sequence-decls", "forms", "note-citation",
    "ruby-text", "hidden-text", "hidden-paragraph", "variable-decls", "user-field-decls", "desc", "title",
}  # fmt: skip
MOST_SPACES = 100


def read_odt(package: Package) -> dict[str, Any]:
    """The text and metadata of a document. Raises BadDocument."""
    manifest = package.xml("META-INF/manifest.xml")
    if manifest is not None and any(tag(element) == "encryption-data" for element in manifest.iter()):
        raise BadDocument("password")
    root = package.root("content.xml")
    styles = package.xml("styles.xml")
    reader = _Reader(package, _numbered(root) | _numbered(styles), _scripts(styles) | _scripts(root))
    bodies = (text for child in root if tag(child) == "body" for text in child if tag(text) == "text")
    blocks = [block for body in bodies for block in reader.blocks(body)]
    meta = package.xml("meta.xml")
    fields = dublin_core(element for child in (meta if meta is not None else ()) for element in child)
    return {"text": joined(blocks, reader.notes), **fields}


def _numbered(root: Any) -> set[tuple[str | None, int]]:
    """The styles of lists and their levels, from 1, that have numbers."""
    found = set()
    for style in root.iter() if root is not None else ():
        if tag(style) == "list-style":
            levels = (value(level, "level") or "" for level in style if tag(level) == "list-level-style-number")
            found |= {(value(style, "name"), int(level)) for level in levels if level.isdecimal() and len(level) < 3}
    return found


def _scripts(root: Any) -> dict[str | None, Script]:
    """The styles of text above or below the line: their position is `super`, `sub`, or a share of its height."""
    found: dict[str | None, Script] = {}
    for mark in root.iter() if root is not None else ():
        if tag(mark) == "text-properties" and (position := value(mark, "text-position")):
            below = position.startswith(("sub", "-"))
            if not position.startswith("0"):
                found[value(mark.getparent(), "name")] = "sub" if below else "sup"
    return found


class _Reader:
    def __init__(
        self, package: Package, numbered: set[tuple[str | None, int]], scripts: dict[str | None, Script]
    ) -> None:
        self._package, self._numbered, self._scripts = package, numbered, scripts
        self.notes: list[str] = []

    def blocks(self, parent: Any) -> Iterator[Block]:
        """The blocks of an element with paragraphs, lists and tables."""
        for child in parent:
            name = tag(child)
            if name in ("p", "h"):
                boxes: list[Any] = []
                text = "".join(self._inline(child, boxes)).strip()
                level = value(child, "outline-level") or "1"
                yield heading(int(level) if level in "123456789" else 1, text) if name == "h" else Block(text)
                for box in boxes:
                    yield from self.blocks(box)
            elif name == "list":
                yield from self._list(child, value(child, "style-name"), 0)
            elif name == "table":
                yield table(self._rows(child))
            elif name not in LEFT_OUT:
                yield from self.blocks(child)

    def _formula(self, reference: Any) -> str:
        """A formula as its author wrote it, or its signs in their order. Empty for other objects, such as charts."""
        name = posixpath.normpath(posixpath.join(value(reference, "href") or "", "content.xml"))
        within = next((each for each in reference if tag(each) == "math"), None)
        root = within if within is not None else self._package.xml(name)
        if root is None or tag(root) != "math":
            return ""
        written = next((each.text for each in root.iter() if tag(each) == "annotation"), None)
        return flat(written or "".join(root.itertext()))

    def _list(self, parent: Any, style: str | None, depth: int) -> Iterator[Block]:
        number = 0
        for child in parent:
            number += tag(child) == "list-item"
            first = True
            for inner in child:
                if tag(inner) == "list":
                    yield from self._list(inner, value(inner, "style-name") or style, depth + 1)
                    continue
                for text, _ in self.blocks([inner]):
                    numbered = (style, depth + 1) in self._numbered and tag(child) == "list-item"
                    yield item(depth, text, number if numbered else None) if first else Block(text, item=True)
                    first = False

    def _rows(self, parent: Any) -> Iterator[list[str]]:
        for child in parent:
            name = tag(child)
            if name == "table-row":
                yield [joined(self.blocks(cell)) for cell in child if tag(cell) in ("table-cell", "covered-table-cell")]
            elif name not in LEFT_OUT:
                yield from self._rows(child)

    def _inline(self, parent: Any, boxes: list[Any]) -> Iterator[str]:
        yield SPACES.sub(" ", parent.text or "")
        for child in parent:
            name = tag(child)
            if name == "s":
                count = value(child, "c") or "1"
                yield " " * min(MOST_SPACES, int(count) if count.isdecimal() and len(count) < 5 else 1)
            elif name in ("tab", "line-break"):
                yield "\t" if name == "tab" else "\n"
            elif name == "note":
                self.notes.append("")
                at = len(self.notes)
                bodies = (inner for inner in child if tag(inner) == "note-body")
                self.notes[at - 1] = flat(joined(block for body in bodies for block in self.blocks(body)))
                yield f"[^{at}]"
            elif name == "text-box":
                boxes.append(child)
            elif name == "object":
                yield self._formula(child)
            elif name not in LEFT_OUT:
                inner = self._inline(child, boxes)
                script = self._scripts.get(value(child, "style-name")) if name == "span" else None
                yield from (shifted(text, script) for text in inner) if script else inner
            yield SPACES.sub(" ", child.tail or "")
