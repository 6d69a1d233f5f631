"""EPUB: the chapters of a book in the order in which they are read."""

from __future__ import annotations

import posixpath
from typing import Any
from urllib.parse import unquote

from storage.errors import BadDocument
from tasks.text.documents.blocks import Block, joined
from tasks.text.documents.markup import blocks_of
from tasks.text.documents.package import Package, dublin_core, tag, value

CONTAINER = "META-INF/container.xml"
TEXTS = ("application/xhtml+xml", "text/html", "text/x-oeb1-document", "application/x-dtbook+xml")


def read_epub(package: Package) -> dict[str, Any]:
    """The text and metadata of a book. Raises BadDocument."""
    roots = (value(each, "full-path") for each in package.root(CONTAINER).iter() if tag(each) == "rootfile")
    opf = next((path for path in roots if path), "")
    root = package.root(opf)
    folder = posixpath.dirname(opf)
    parts = {tag(child): child for child in root}
    listed = {each.get("id"): each for each in parts.get("manifest", ()) if tag(each) == "item"}
    encrypted = _encrypted(package)
    blocks: list[Block] = []
    for reference in parts.get("spine", ()):
        chapter = listed.get(reference.get("idref"))
        if chapter is None or chapter.get("media-type") not in TEXTS or "nav" in chapter.get("properties", "").split():
            continue
        name = posixpath.normpath(posixpath.join(folder, unquote(chapter.get("href", "").partition("#")[0])))
        if name in encrypted:
            raise BadDocument("password")
        if name in package.names:
            blocks += blocks_of(package.part(name), name)
    return {"text": joined(blocks), **dublin_core(parts.get("metadata", ()))}


def _encrypted(package: Package) -> set[str]:
    """The parts that can't be read without a key. Fonts may be encrypted in a book that can."""
    root = package.xml("META-INF/encryption.xml")
    found = (value(each, "URI") for each in (root.iter() if root is not None else ()) if tag(each) == "CipherReference")
    return {unquote(name) for name in found if name}
