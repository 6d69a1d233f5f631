"""Which pages a source reads, by their URLs: hosts and patterns, before a page is unpacked."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import regex

from storage.errors import SourceError
from tasks.download.config import WebSource
from tasks.download.sources.streams import unreadable

PATTERN_SECONDS = 1.0
# Lists of hosts in common forms: a file for /etc/hosts, URLs, wildcards, rules of ad blockers
BESIDE = re.compile(r"^(?:(?:0\.0\.0\.0|127\.0\.0\.1|::1?)\s+|\|\||[a-z][a-z0-9+.-]*://|\*\.|\.)+", re.IGNORECASE)
HOST = re.compile(r"(?:[\w-]+\.)*[\w-]+|\[?[0-9a-f:.]+\]?")


def why_excluded(url: str, source: WebSource) -> str:
    """Why a page isn't read: `excluded_host` if it is on one of the hosts to leave out or on one below, or
    `excluded_url`. Empty if it is read. Raises SourceError."""
    hosts = _hosts(tuple(source.exclude_hosts), tuple(map(_state, source.exclude_host_files)))
    if hosts:
        try:
            labels = _normal(urlsplit(url).hostname or "").split(".")
        except ValueError:
            labels = []
        if any(".".join(labels[number:]) in hosts for number in range(len(labels))):
            return "excluded_host"
    unwanted = any(_has(url, pattern) for pattern in source.exclude_urls)
    wanted = not source.only_urls or any(_has(url, pattern) for pattern in source.only_urls)
    return "excluded_url" if unwanted or not wanted else ""


def _has(url: str, pattern: str) -> bool:
    try:
        return regex.search(pattern, url, timeout=PATTERN_SECONDS) is not None
    except TimeoutError as error:
        raise SourceError(
            f"The pattern {pattern} takes more than {PATTERN_SECONDS:.0f} s on {url[:200]}.",
            "Write it without repetitions within repetitions.",
        ) from error


def _state(file: str) -> tuple[str, int, int]:
    """A list of hosts, its size and the time of its last change, as a process may outlive a run."""
    try:
        state = Path(file).expanduser().stat()
    except OSError as error:
        raise unreadable(file, error) from error
    return file, state.st_size, state.st_mtime_ns


@functools.cache
def _hosts(names: tuple[str, ...], files: tuple[tuple[str, int, int], ...]) -> frozenset[str]:
    """The hosts that a source leaves out. Raises SourceError for a file that can't be read, or that has other lines."""
    return frozenset([*map(_normal, names), *(host for file, _, _ in files for host in _listed(file))])


def _listed(file: str) -> Iterator[str]:
    try:
        lines = Path(file).expanduser().read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(file, error) from error
    for number, line in enumerate(lines, 1):
        text = re.sub(r"(?:^|\s)[#!].*", "", line).strip()
        if not text:
            continue
        host = re.split(r"[\^/?]", BESIDE.sub("", text))[0].rstrip(".")
        if not HOST.fullmatch(host):
            raise SourceError(f"{file}:{number} isn't a host: {line[:80]!r}.", "Correct the line, or remove it.")
        yield _normal(host)


def _normal(host: str) -> str:
    """A host as URLs have it: in lower case, other letters than ASCII by IDNA."""
    host = host.strip("[].").lower()
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return host
