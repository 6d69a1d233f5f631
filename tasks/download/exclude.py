"""Documents to leave out: by id, hash, URL or host. A takedown is one more line, and costs the shards that it touches.

Which documents a shard may hold is settled before they are excluded, so that a document that goes moves no other one to
another shard. Artifacts that differ only in what they exclude take each other's portions: a shard with such a document
is written again, and the rest are linked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from storage.errors import SourceError
from storage.shards.documents import ID_LENGTH, Document, Verdict, read_documents, write_documents

RECORD = "exclude.txt"  # in an artifact: what it excludes
REASON = "excluded"
HASH = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}(?:[0-9a-f]{{32}})?")
HOST = re.compile(r"(?!-)[\w-]+(?:\.[\w-]+)+")


def kind_of(item: str) -> str | None:
    """What an item names: an `id` (also the whole SHA-256 of a text), a `url`, a `host`, or None if it is neither."""
    if HASH.fullmatch(item):
        return "id"
    if re.match(r"[a-z][a-z0-9+.-]*://\S+$", item, re.IGNORECASE):
        return "url"
    return "host" if HOST.fullmatch(item) else None


class Exclusion:
    """What is left out. `items` are normal: ids of 32 digits, URLs, hosts in lower case."""

    def __init__(self, items: Iterable[str]) -> None:
        self.items = frozenset(
            item[:ID_LENGTH] if (kind := kind_of(item)) == "id" else item.lower() if kind == "host" else item
            for item in items
        )
        self.by_url = any(kind_of(item) != "id" for item in self.items)  # else ids suffice

    def __bool__(self) -> bool:
        return bool(self.items)

    def names(self, document: Document) -> bool:
        """Whether a document is left out: its id, a URL in its metadata, or that URL's host or one above."""
        if document.id in self.items:
            return True
        return self.by_url and '"url"' in document.metadata and self.names_url_in(json.loads(document.metadata))

    def names_url_in(self, value: Any) -> bool:
        """Whether a URL in metadata or a row, at any depth, is named, or its host or one above."""
        return any(self.items_of(value))

    def items_of(self, value: Any) -> Iterator[str]:
        """The items that name a URL in metadata or a row, at any depth: the URL, its host, or one above."""
        for url in _urls(value):
            try:
                labels = (urlsplit(url).hostname or "").rstrip(".").split(".")
            except ValueError:
                labels = []
            hosts = (".".join(labels[at:]) for at in range(len(labels)))
            yield from (item for item in (url, *hosts) if item in self.items)


def verdict(identity: str, source: str) -> Verdict:
    """The line of the ledger about an excluded document."""
    return Verdict(identity, source, "removed", REASON)


def read_items(path: Path) -> Iterator[str]:
    """The items of a file, one a line. Lines that begin with # don't count. Raises SourceError."""
    try:
        lines = path.expanduser().read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} can't be read: {error}.", "Correct download.exclude_files.") from error
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and line[0] != "#":
            if kind_of(line) is None:
                raise SourceError(
                    f"{path}:{number} is neither an id of a document, a SHA-256, a URL nor a host.", "Correct the line."
                )
            yield line


def without(folder: Path, exclusion: Exclusion) -> list[Document]:
    """Write the shards of a folder again that have excluded documents. Returns these."""
    gone: list[Document] = []
    for path in sorted(folder.glob("*.parquet")):
        documents = list(read_documents(path))
        named = [exclusion.names(document) for document in documents]
        if any(named):
            gone += [document for document, out in zip(documents, named, strict=True) if out]
            path.unlink()  # it is a link to a file of the earlier artifact
            if not all(named):
                write_documents(path, [document for document, out in zip(documents, named, strict=True) if not out])
    return gone


def _urls(value: Any) -> Iterator[str]:
    """The texts of keys named url, at any depth."""
    if isinstance(value, dict):
        for key, below in value.items():
            if key == "url" and isinstance(below, str):
                yield below
            else:
                yield from _urls(below)
    elif isinstance(value, list):
        for below in value:
            yield from _urls(below)
