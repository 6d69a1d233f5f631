"""Reads the user's text files as documents, and checks them before anything is measured on them.

A file is plain text in UTF-8, which is one document, or JSON Lines with a document's `text` per line. It may be
compressed by gzip. Nothing is repaired: a perplexity is for the text as it is, to the byte.
"""

from __future__ import annotations

import codecs
import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from storage.digest_cache import remembered_digest
from storage.errors import ConfigError, SourceError
from storage.shards.lines import parse_json
from tasks.evaluate.language.config import LanguageConfig

MOST_BYTES = 8 << 20  # of a document: `tokenizers` needs about 200 bytes of memory per byte
LINES = (".jsonl", ".ndjson", ".json")
FIELD = "evaluate.language.files"


def fingerprints(config: LanguageConfig) -> dict[str, str]:
    """The SHA-256 of each file, by name. Raises ConfigError for a missing file, SourceError for one that can't be
    read."""
    digests = {}
    for name, location in config.files.items():
        path = path_of(name, location)
        try:
            digests[name] = remembered_digest(path)
        except OSError as error:
            raise _unusable(name, path, f"can't be read: {error}", "Make it readable") from error
    return digests


def check_files(config: LanguageConfig) -> None:
    """Read each file once. Raises ConfigError for a missing file, SourceError for one that isn't text, is empty, or has
    a document that is too long."""
    for name, location in config.files.items():
        for _ in read_texts(name, path_of(name, location)):
            pass


def path_of(name: str, location: str) -> Path:
    """The path of a file of the profile. Raises ConfigError for anything but a file."""
    path = os.path.expanduser(location)
    if not os.path.exists(path):  # Path.exists raises for a name that is too long, os.path says no
        shown = location if len(location) <= 200 else f"{location[:200]}…"
        raise ConfigError(
            f"{FIELD}.{name}: the file {shown!r} doesn't exist (seen from {Path.cwd()}).", "Check the path."
        )
    if not os.path.isfile(path):
        kind = "a folder" if os.path.isdir(path) else "not a plain file"
        raise ConfigError(f"{FIELD}.{name}: {location!r} is {kind}.", "Name one text file, each under its own name.")
    return Path(path).resolve()


def read_texts(name: str, path: Path) -> Iterator[str]:
    """Yields the non-empty documents of a file, in order, decompressed as they are read.

    Raises SourceError, which names the line in a file of lines.
    """
    parts = [part.lower() for part in path.suffixes]
    packed = parts[-1:] == [".gz"]
    lines = (parts[:-1] if packed else parts)[-1:]
    read = 0
    try:
        with cast(IO[bytes], gzip.open(path) if packed else path.open("rb")) as file:
            texts = _of_lines(name, path, file) if lines and lines[0] in LINES else _whole(name, path, file)
            for text in texts:
                read += 1
                yield text
    except (OSError, EOFError, zlib.error) as error:
        raise _unusable(name, path, f"can't be read: {error}", "Replace it") from error
    if not read:
        raise _unusable(name, path, "contains no text", "Name another, or remove it")


def _whole(name: str, path: Path, file: IO[bytes]) -> Iterator[str]:
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise _too_long(name, path, "is one document")
    text = _decoded(name, path, data, "")
    if text:
        yield text


def _of_lines(name: str, path: Path, file: IO[bytes]) -> Iterator[str]:
    number = 0
    while line := file.readline(2 * MOST_BYTES + 1):  # escapes make a line longer than its text
        number += 1
        where = f" on line {number:,}"
        if len(line) > 2 * MOST_BYTES:
            raise _too_long(name, path, f"has a document{where}")
        line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if not line.strip():
            continue
        text = _text_of(name, path, _decoded(name, path, line, where), where)
        if len(text.encode()) > MOST_BYTES:
            raise _too_long(name, path, f"has a document{where}")
        if text:
            yield text


def _text_of(name: str, path: Path, line: str, where: str) -> str:
    try:
        row = parse_json(line)
        text = row["text"] if isinstance(row, dict) else None
        if not isinstance(text, str):
            raise ValueError("it isn't an object with a `text`")
        text.encode()  # a lone surrogate is valid JSON, but not text
    except KeyError as error:
        raise _unusable(name, path, f"lacks `text`{where}", "Name the field with the text `text`") from error
    except ValueError as error:
        raise _unusable(name, path, f"isn't JSON Lines with a `text`{where}: {error}", "Fix it") from error
    return text


def _decoded(name: str, path: Path, data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _unusable(
            name, path, f"isn't UTF-8{where}: byte {data[error.start]:#04x} at {error.start:,}", "Convert it"
        ) from error


def _too_long(name: str, path: Path, what: str) -> SourceError:
    return _unusable(
        name, path, f"{what} of more than {MOST_BYTES:,} bytes", "Split it into JSON Lines with a `text` each"
    )


def _unusable(name: str, path: Path, problem: str, remedy: str) -> SourceError:
    return SourceError(f"{FIELD}.{name}: {path} {problem}.", f"{remedy}.")
