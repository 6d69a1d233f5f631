"""The bytes of a dump's file, plain or packed by bzip2, gzip or Zstandard, past what is damaged.

Wikipedia's `multistream` dumps are many streams of bzip2, a hundred pages in each. A damaged one costs its pages: the
next stream is searched for. Other forms have one stream, in which damage costs the rest.
"""

from __future__ import annotations

import bz2
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tasks.download.sources.containers.unpacked import unpacked

READ_BYTES = 1 << 18
BZIP2 = re.compile(rb"BZh[1-9]1AY&SY")
SIGN = 10  # bytes of it


class Piece(NamedTuple):
    """Bytes, with the offset in the file of the stream that they are of, or of themselves if the file isn't packed. If
    `damage` says why, what followed up to the next piece is lost. `ends` says that the file was read to its end."""

    data: bytes
    offset: int
    damage: str = ""
    ends: bool = False


def is_multistream(path: Path) -> bool:
    """Whether a dump, by its name, is many streams with whole pages in each, so that it can be read from its middle."""
    return path.suffix == ".bz2" and "multistream" in path.name


def pieces(path: Path, start: int = 0, end: int | None = None) -> Iterator[Piece]:
    """A file in pieces. Of streams of bzip2, those that begin in the bytes from `start` to `end`. Raises OSError if it
    can't be read at all."""
    with path.open("rb") as file:
        if path.suffix == ".bz2":
            yield from _streams(file, start, end)
            return
        offset = 0
        try:
            plain = unpacked(file, path.suffix if path.suffix in (".gz", ".zst") else "")
            while data := plain.read1(READ_BYTES):  # type: ignore[attr-defined]
                yield Piece(data, 0 if plain is not file else offset)
                offset += len(data)
            yield Piece(b"", offset, ends=True)
        except OSError as error:
            yield Piece(b"", file.tell(), str(error))


def _streams(file: BinaryIO, start: int, end: int | None) -> Iterator[Piece]:
    at, raw = file.seek(_next_stream(file, start) if start else 0), b""  # `raw` at this offset wasn't unpacked yet
    sound = False  # the last stream was
    while True:
        raw = raw or file.read(READ_BYTES)
        if not raw or (end is not None and at >= end):
            if not raw and sound:
                yield Piece(b"", at, ends=True)
            return
        begun, unpack = at, bz2.BZ2Decompressor()
        try:
            while not unpack.eof:
                if not raw and unpack.needs_input:
                    raw = file.read(READ_BYTES)
                    if not raw:
                        raise OSError("the file ends within packed data")
                data = unpack.decompress(raw, READ_BYTES)
                at += len(raw)
                raw = b""
                if data:
                    yield Piece(data, begun)
            raw = unpack.unused_data
            at -= len(raw)
            sound = True
        except OSError as error:
            yield Piece(b"", begun, str(error))
            at = _next_stream(file, begun + 1)
            file.seek(at)
            raw, sound = b"", False


def _next_stream(file: BinaryIO, start: int) -> int:
    """The offset of the next stream, or of the file's end."""
    file.seek(start)
    data = b""
    while piece := file.read(READ_BYTES):
        data += piece
        if found := BZIP2.search(data):
            return start + found.start()
        start, data = start + max(0, len(data) - SIGN), data[-SIGN:]
    return file.seek(0, io.SEEK_END)
