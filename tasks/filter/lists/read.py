"""Reads lists from their files."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from storage.errors import SourceError

NOT_WORD = re.compile(r"[^a-zA-Z0-9]+")  # between the words of an address, as for datatrove


def read_list(file: str) -> list[str]:
    """The entries of a file, without blank lines and comments. Raises SourceError for a file that can't be read or
    lacks entries."""
    path = Path(file).expanduser()
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"The list {file} can't be read: {error}.", "Check the paths under `lists`.") from error
    entries = [line for line in lines if line and not line.startswith("#")]
    if not entries:
        raise SourceError(f"The list {file} is empty.", "Use a file with one entry per line.")
    return entries


def hosts_in(files: list[str]) -> frozenset[str]:
    """Hosts in lower case. For a line as in /etc/hosts (`0.0.0.0 name`) the name counts, for an address its host."""
    entries = (line.partition("#")[0].split()[-1] for file in files for line in read_list(file))
    return frozenset(host_of(entry) for entry in entries) - {""}


def host_of(url: str) -> str:
    """The host of an address, with or without a scheme, or ""."""
    try:
        return (urlsplit(url if "//" in url else f"//{url}").hostname or "").strip(".")
    except ValueError:
        return ""


def domains_of(host: str) -> list[str]:
    """A host and the domains that contain it, the longest first: a.b.org, b.org, org."""
    parts = host.split(".")
    return [".".join(parts[at:]) for at in range(len(parts))]


def plain_url(url: str) -> str:
    """An address without scheme, `www.`, fragment and final slash, with its host in lower case."""
    rest = url.partition("://")[2] or url
    host, slash, path = rest.partition("#")[0].partition("/")
    return (host.lower().removeprefix("www.") + slash + path).rstrip("/")
