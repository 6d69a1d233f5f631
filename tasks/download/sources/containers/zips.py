"""The members of a ZIP archive: by its list of members, or, if a cut took that, one after another from the beginning.

zipfile reads the list, with half a kilobyte of memory a member, and checks each member's checksum. It doesn't notice
members that share their data, by which small archives unpack to petabytes (Fifield, 2019), and refuses a cut archive.
"""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tasks.download.sources.containers.tar import Member
from tasks.download.sources.containers.unpacked import Unpacked
from tasks.download.sources.rows import Refused

LOCAL, LISTED = b"PK\x03\x04", b"PK\x01\x02"
HEAD = struct.Struct("<4s5H3I2H")  # of a member
STORED, DEFLATED = 0, 8
ENCRYPTED, DESCRIBED, UTF8 = 0x1, 0x8, 0x800  # flags
READ_BYTES = 1 << 16
BROKEN = (zipfile.BadZipFile, struct.error, ValueError, OverflowError, NotImplementedError, EOFError)


def read_zip(path: Path, place: str) -> Iterator[Member | Refused]:
    """The members of an archive but for folders, and what is damaged. Raises OSError."""
    try:
        archive = zipfile.ZipFile(path)
    except BROKEN as error:
        with path.open("rb") as file:
            yield from _from_beginning(file, place)
            yield Refused("damaged_archive", f"{place} offset {file.tell()}", why=str(error))
        return
    with archive:
        shared = _sharing(archive.infolist(), archive.start_dir)
        for info in archive.infolist():
            if info.filename.endswith("/"):
                continue
            if info.header_offset in shared:
                yield Refused("bomb", f"{place}!{info.filename}", why="it shares its data with another member")
            elif info.flag_bits & ENCRYPTED:
                yield Refused("encrypted", f"{place}!{info.filename}")
            elif stat.S_ISLNK(info.external_attr >> 16):
                yield Member(info.filename, info.file_size, io.BytesIO(), "a link")
            else:
                yield from _member(archive, info, place)


def _sharing(infos: list[zipfile.ZipInfo], end: int) -> set[int]:
    """The offsets of members whose data reach into the next one's, or that lie at the same place."""
    found = set()
    ordered = sorted(infos, key=lambda info: info.header_offset)
    offsets = [*(info.header_offset for info in ordered), end]
    for info, after in zip(ordered, offsets[1:], strict=True):
        if info.header_offset + HEAD.size + info.compress_size > after:
            found.add(info.header_offset)
    return found


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, place: str) -> Iterator[Member | Refused]:
    try:
        file = archive.open(info)
    except (*BROKEN, OSError, RuntimeError) as error:
        yield Refused("damaged_member", f"{place}!{info.filename}", why=f"offset {info.header_offset}: {error}")
        return
    with file:
        yield Member(info.filename, info.file_size, io.BufferedReader(Unpacked(file, info.compress_size)))


def _from_beginning(file: BinaryIO, place: str) -> Iterator[Member | Refused]:
    """The members until the first that is broken. Leaves the file there."""
    while (at := file.tell()) >= 0 and (head := file.read(HEAD.size)).startswith(LOCAL) and len(head) == HEAD.size:
        _, _, flags, method, _, _, _, packed, size, name_size, extra_size = HEAD.unpack(head)
        name = file.read(name_size).decode("utf-8" if flags & UTF8 else "cp437", "replace")
        file.seek(extra_size, 1)
        if flags & ENCRYPTED or method not in (STORED, DEFLATED) or (flags & DESCRIBED and method == STORED):
            file.seek(at)
            return
        piece = _Local(file, method, packed, flags & DESCRIBED)
        if not name.endswith("/"):
            yield Member(name, size, io.BufferedReader(Unpacked(piece, piece)))
        try:
            while piece.read(READ_BYTES):
                pass
        except (zlib.error, EOFError):
            file.seek(at)
            return
        if flags & DESCRIBED:
            file.seek(12 if file.read(4) == b"PK\x07\x08" else 8, 1)  # checksum and sizes, perhaps after a sign
    file.seek(at)


class _Local:
    """The data of a member of an archive without a list. `passed` counts its packed bytes."""

    def __init__(self, file: BinaryIO, method: int, packed: int, described: int) -> None:
        self._file, self._left, self.passed = file, None if described else packed, 0
        self._unpack: Any = zlib.decompressobj(-15) if method == DEFLATED else None
        self._raw = b""

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, none at the end. Raises zlib.error, EOFError."""
        while True:
            if self._unpack is not None and self._unpack.eof:
                return b""
            if not self._raw and self._left != 0:
                self._raw = self._file.read(READ_BYTES if self._left is None else min(READ_BYTES, self._left))
                if not self._raw:
                    raise EOFError
                self.passed += len(self._raw)
                self._left = None if self._left is None else self._left - len(self._raw)
            if self._unpack is None:
                stored, self._raw = self._raw[:size], self._raw[size:]
                return stored
            if not self._raw:
                raise EOFError
            data: bytes = self._unpack.decompress(self._raw, size)
            self._raw = self._unpack.unconsumed_tail
            if self._unpack.eof and self._left is None:
                self._file.seek(-len(self._unpack.unused_data), 1)  # what follows the member
            if data:
                return data
