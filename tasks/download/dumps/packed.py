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
    `damage` says why, what followed up to the next piece is lost."""

    data: bytes
    offset: int
    damage: str = ""


def pieces(path: Path) -> Iterator[Piece]:
    """A file in pieces. Raises OSError if it can't be read at all."""
    with path.open("rb") as file:
        if path.suffix == ".bz2":
            yield from _streams(file)
            return
        offset = 0
        try:
            with unpacked(file, path.suffix if path.suffix in (".gz", ".zst") else "") as plain:
                while data := plain.read1(READ_BYTES):  # type: ignore[attr-defined]
                    yield Piece(data, 0 if plain is not file else offset)
                    offset += len(data)
        except OSError as error:
            yield Piece(b"", file.tell(), str(error))


def _streams(file: BinaryIO) -> Iterator[Piece]:
    at, raw = 0, b""  # the offset of `raw`, which wasn't unpacked yet
    while True:
        raw = raw or file.read(READ_BYTES)
        if not raw:
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
        except OSError as error:
            yield Piece(b"", begun, str(error))
            at = _next_stream(file, begun + 1)
            file.seek(at)
            raw = b""


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
