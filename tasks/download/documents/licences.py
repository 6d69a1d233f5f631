"""The licence of source code: that of the nearest file above it that states one."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NAMES = re.compile(r"(un)?licen[sc]e|copying", re.IGNORECASE)  # beginnings of names
ENDINGS = ("", ".txt", ".md", ".rst")
READ = 40_000  # bytes. BSD's third clause and GPL's version come far before
WORDS = re.compile(r"[^a-z0-9.]+")
# The order matters: the later ones are quoted by the earlier ones, or are a part of them
PHRASES = (
    ("AGPL-3.0", "gnu affero general public license version 3"),
    ("LGPL-3.0", "gnu lesser general public license version 3"),
    ("LGPL-2.1", "gnu lesser general public license version 2.1"),
    ("GPL-3.0", "gnu general public license version 3"),
    ("GPL-2.0", "gnu general public license version 2"),
    ("MPL-2.0", "mozilla public license version 2.0"),
    ("EPL-2.0", "eclipse public license v 2.0"),
    ("Apache-2.0", "apache license version 2.0"),
    ("BSL-1.0", "boost software license version 1.0"),
    ("CC0-1.0", "cc0 1.0 universal"),
    ("CC-BY-SA-4.0", "attribution sharealike 4.0 international"),
    ("CC-BY-4.0", "attribution 4.0 international"),
    ("Unlicense", "this is free and unencumbered software released into the public domain"),
    ("MIT", "permission is hereby granted free of charge to any person obtaining a copy of this software"),
    ("ISC", "permission to use copy modify and or distribute this software for any purpose with or without fee"),
    ("PSF-2.0", "python software foundation license version 2"),
    ("BSD-3-Clause", "neither the name"),
    ("BSD-2-Clause", "redistribution and use in source and binary forms"),
    ("Zlib", "this software is provided as is without any express or implied warranty"),
)
HEAD = 1500  # characters in which these phrases count, as other licences name them further on
ANYWHERE = ("MIT", "ISC", "BSD-3-Clause", "BSD-2-Clause", "Unlicense", "Zlib")


class Licence(NamedTuple):
    """A file that states a licence, and the identifier of that, or "" if it isn't recognised."""

    path: Path
    identifier: str


def licences_of(path: Path, root: Path) -> tuple[Licence, ...]:
    """The files that state the licence of a file: those in the nearest folder above it that has any, up to `root`."""
    for folder in _between(path.parent, root):
        if found := _in_folder(folder):
            return found
    return ()


def _between(folder: Path, root: Path) -> Iterator[Path]:
    yield folder
    while folder != root and root in folder.parents:
        folder = folder.parent
        yield folder


@functools.lru_cache(100_000)
def _in_folder(folder: Path) -> tuple[Licence, ...]:
    try:
        paths = [path for path in sorted(folder.iterdir()) if _names_licence(path) and path.is_file()]
        return tuple(Licence(path, recognised(_beginning(path))) for path in paths)
    except OSError:
        return ()


def forget_licences() -> None:
    """Read the files again when they are asked for. A process may outlive them."""
    _in_folder.cache_clear()


def _names_licence(path: Path) -> bool:
    return bool(NAMES.match(path.name)) and path.suffix.lower() in ENDINGS


def _beginning(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(READ).decode("utf-8", "replace")


def recognised(text: str) -> str:
    """The SPDX identifier of a licence's text, or "" if it isn't one of PHRASES. The text of a GNU licence doesn't say
    whether later versions are allowed too, so neither does the identifier."""
    words = WORDS.sub(" ", text.lower())
    for identifier, phrase in PHRASES:
        if phrase in (words if identifier in ANYWHERE else words[:HEAD]):
            return identifier
    return ""
