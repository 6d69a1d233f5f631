"""The archives of a source at addresses: URLs, patterns of buckets, and lists of crawls."""

from __future__ import annotations

import gzip
import tempfile
import zlib
from hashlib import sha256
from pathlib import Path

from storage.digest_cache import remembered_digest
from storage.errors import SourceError
from tasks.download.config import CrawlSelection, WebSource
from tasks.download.sources.remote import Address, Politeness, is_address, look, match, open_address
from tasks.download.sources.streams import unreadable

LONGEST_LIST = 1 << 30  # bytes
LONGEST_PATH = 4096  # characters
UNSEEN = -1  # the size of a file that wasn't looked at


def addresses(source: WebSource, polite: Politeness) -> list[Address]:
    """The archives at URLs: those of `paths`, looked at, then those of the crawl, whose sizes are `UNSEEN`. Raises
    SourceError."""
    listed = _listed(source.crawl, polite) if source.crawl else []
    return [*looked_at(source, polite), *(Address(url, UNSEEN, "") for url in listed)]


def fingerprint(source: WebSource) -> dict[str, str]:
    """What servers call the version of each file at a URL, and the digest of a list of paths. Archives of a list are
    named by it and by the config. Raises SourceError."""
    found = {f"{source.name}/{each.url}": f"{each.size} {each.version}" for each in looked_at(source)}
    if source.crawl and (path := source.crawl.path_list):
        if is_address(path):
            found[f"{source.name}/{path}"] = look(path).version
        else:
            try:
                found[f"{source.name}/{path}"] = remembered_digest(Path(path).expanduser())
            except OSError as error:
                raise unreadable(Path(path), error) from error
    return found


def looked_at(source: WebSource, polite: Politeness | None = None) -> list[Address]:
    """The archives at the URLs of `paths`, sorted. Raises SourceError."""
    urls = {url for path in source.paths if is_address(path) for url in match(path)}
    return [look(url, polite) for url in sorted(urls)]


def _listed(crawl: CrawlSelection, polite: Politeness) -> list[str]:
    """The URLs of a crawl's archives, in the order of their hashes: the first are those of a smaller selection."""
    root = crawl.root.rstrip("/")
    place = crawl.path_list or f"{root}/crawl-data/{crawl.id}/{crawl.content}.paths.gz"
    lines = [line.strip() for line in _text(place, polite).splitlines() if line.strip()]
    for line in lines:
        if not line.isprintable() or len(line) > LONGEST_PATH or " " in line or ".." in line or line[0] == "/":
            raise SourceError(f"{place} isn't a list of paths: it has the line {line[:80]!r}.", "Check the address.")
    if not lines:
        raise SourceError(f"{place} has no path.", "Check it.")
    urls = {line if is_address(line) else f"{root}/{line}" for line in lines}
    return sorted(urls, key=lambda url: sha256(url.encode()).digest())[: crawl.files]


def _text(place: str, polite: Politeness) -> str:
    """The text of a list, unpacked if it is packed. Raises SourceError."""
    try:
        if is_address(place):
            with tempfile.TemporaryDirectory() as folder, open_address(look(place), Path(folder), polite) as file:
                data = file.read(LONGEST_LIST)
        else:
            data = Path(place).expanduser().read_bytes()
        return (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise SourceError(f"{place} can't be read: {error}.", "Check the list.") from error
