"""The parts of formats that are ZIP files: DOCX, ODT, PPTX and EPUB.

A part is unpacked only if its size and its ratio, which the directory states, are within bounds. `zipfile` unpacks no
more than the directory states. A part within a part, such as an embedded workbook, is never unpacked.
"""

from __future__ import annotations

import functools
import io
import lzma
import posixpath
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote
from zipfile import BadZipFile, ZipFile

from storage.errors import BadDocument

RATIO = 200  # bytes of a part for each byte in the file
SMALL = 1_000_000  # bytes of a part that may have any ratio
COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # files of Office before 2007, and encrypted ones since
ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
WRONG = (BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, struct.error, ValueError, OverflowError, KeyError)
DEEP = "Excessive depth"  # of libxml2's error


class Relation(NamedTuple):
    """What a part of OOXML refers to."""

    kind: str
    part: str


class Package:
    """A ZIP file of which no more than `limit` bytes are unpacked. Raises BadDocument."""

    def __init__(self, content: bytes, limit: int) -> None:
        self._left = limit
        if content.startswith(COMPOUND):
            if ENCRYPTED in content:
                raise BadDocument("password")
            raise BadDocument("damaged_document", why="it is a file of Office before 2007, or encrypted")
        try:
            self._zip = ZipFile(io.BytesIO(content))
        except (*WRONG, NotImplementedError) as error:
            raise _damaged(error) from error
        self.names = {info.filename: info for info in self._zip.infolist()}

    def part(self, name: str) -> bytes:
        """The bytes of a part. Raises BadDocument."""
        info = self.names.get(name)
        if info is None:
            raise BadDocument("damaged_document", why=f"it has no part {name}")
        if info.flag_bits & 1:
            raise BadDocument("password")
        if info.file_size > max(SMALL, RATIO * info.compress_size):
            raise BadDocument("zip_bomb", why=f"{name} unpacks to more than {RATIO} times its size")
        if info.file_size > self._left:
            raise BadDocument("too_long", why="unpacked")
        self._left -= info.file_size
        try:
            return self._zip.read(info)
        except (*WRONG, NotImplementedError, RuntimeError) as error:
            raise _damaged(error) from error

    def xml(self, name: str) -> Any:
        """The root element of a part of XML, or None if there is no such part. Raises BadDocument."""
        return self.root(name) if name in self.names else None

    def root(self, name: str) -> Any:
        """The root element of a part of XML. Raises BadDocument, also if there is no such part."""
        return parse(self.part(name), name)

    @functools.cache  # noqa: B019  as long as its document
    def relations(self, part: str) -> dict[str, Relation]:
        """The relations of a part of OOXML within the package, by id. The package's own are those of the part ""."""
        folder, name = posixpath.split(part)
        root = self.xml(posixpath.join(folder, "_rels", f"{name}.rels"))
        found = {}
        for child in root if root is not None else ():
            if child.get("TargetMode") != "External" and child.get("Target"):
                target = posixpath.normpath(posixpath.join("/", folder, unquote(child.get("Target"))))
                found[child.get("Id", "")] = Relation(child.get("Type", "").rpartition("/")[2], target.lstrip("/"))
        return found

    def related(self, part: str, kind: str) -> Iterator[Any]:
        """The root elements of what a part refers to by relations of a kind."""
        for relation in self.relations(part).values():
            if relation.kind == kind and (root := self.xml(relation.part)) is not None:
                yield root

    def main(self, usual: str) -> str:
        """The name of the main part of OOXML."""
        kinds = self.relations("").values()
        return next((relation.part for relation in kinds if relation.kind == "officeDocument"), usual)

    def properties(self) -> dict[str, str]:
        """Title, author, date and language of OOXML."""
        root = next(self.related("", "core-properties"), None)
        return dublin_core(root if root is not None else ())


def _damaged(error: Exception) -> BadDocument:
    return BadDocument("damaged_document", why=f"{error}"[:200] or type(error).__name__)


def parse(content: bytes, name: str) -> Any:
    """The root element of XML, whose entities aren't expanded. Raises BadDocument."""
    from lxml import etree

    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True
    )
    try:
        return etree.fromstring(content, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        if DEEP in str(error):
            raise BadDocument("nested_too_deep", why=name) from error
        raise BadDocument("damaged_document", why=f"{name}: {error}"[:200]) from error


def tag(element: Any) -> str:
    """The name of an element without its namespace, as OOXML has two for each."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def value(element: Any, name: str) -> str | None:
    """An attribute by its name without a namespace."""
    for each, text in element.attrib.items():
        if each.rpartition("}")[2] == name:
            return str(text)
    return None


FIELDS = {  # of Dublin Core and of ODF. The first one that has text counts
    "title": "title",
    "creator": "author",
    "initial-creator": "author",
    "created": "date",
    "creation-date": "date",
    "date": "date",
    "language": "language",
    "rights": "rights",
}


def dublin_core(elements: Any) -> dict[str, str]:
    """The fields of metadata that these elements have."""
    found: dict[str, str] = {}
    for element in elements:
        name, text = FIELDS.get(tag(element)), " ".join("".join(element.itertext()).split())
        if name and text:
            found.setdefault(name, text)
    return found
