"""A web archive as a stream of sections: stretches that begin with a record.

An archive is most often compressed record by record, each a member of gzip, so that one can be read without the others.
A section is such a member with those after it that continue its record. A member that is damaged or cut costs its own
record: the next member that begins with a record is searched for. A file of one member, a file that isn't compressed,
and one of Zstandard are one section. FastWARC reads on past such places without an error, or stops at them.

Several workers may read a large file, each the records that begin in some range of its bytes (`Reach`).
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

Unpacker = Any  # of zlib, which has no name for its type
READ_BYTES = 1 << 16
ZSTD_BYTES = 4096  # as those right before damage are lost with it
MAGIC = b"\x1f\x8b\x08"
ZSTD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")  # a frame, or one to skip, which has a dictionary
WARC_HEAD = re.compile(rb"WARC/\d\.\d+\r?\n")
# ARC 1 and 2: URL, IP address, date, type, other fields in the second version, length
ARC_HEAD = re.compile(rb"([a-z]+:\S+) (\S+) (\d{12,14}) (\S+)(?: [^\r\n]*)? (\d+)\r?\n")
LONGEST_HEAD = 1 << 16  # bytes


class Damaged(Exception):
    """Compressed data that can't be read: the offset of its member in the file, and why."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(why)
        self.offset, self.why = offset, why


@dataclass
class Reach:
    """The part of a file that is read: the records that begin at `start` or later, but before `end`.

    Reading sets `first`, where the first of them begins, None if there is none, and `after`, where the next record
    begins, the file's size if there is none, None if that isn't known because of damage. A range may seem to begin with
    a record that lies within another one, an archive in an archive. Then its `first` isn't the `after` of the range
    before."""

    start: int = 0
    end: int | None = None
    first: int | None = None
    after: int | None = None

    def ends(self, offset: int) -> bool:
        """Whether a record that begins at this offset isn't read."""
        return self.end is not None and offset >= self.end


class Section:
    """Bytes that are read in order, some of which may be put back. `at` is the offset of the first one in the file. If
    it is compressed (`within`), `offset` counts on in what is unpacked, and it is read to its end."""

    def __init__(self, more: Callable[[], bytes], at: int, within: bool, reach: Reach) -> None:
        self._more, self._at, self.within, self._reach = more, at, within, reach
        self._buffer = b""
        self._ended = False
        self._damage: Damaged | None = None
        self._read = 0

    @property
    def offset(self) -> str:
        """Where the next byte is, for messages."""
        if self.within:
            return f"offset {self._at}" + (f" byte {self._read}" if self._read else "")
        return f"offset {self._at + self._read}"

    @property
    def position(self) -> int:
        """The offset in the file: of the next byte, or of the section's first if it is compressed."""
        return self._at if self.within else self._at + self._read

    def peek(self, size: int) -> bytes:
        """The next bytes, fewer at the end and before damage. Raises Damaged if damage is next."""
        if len(self._buffer) < size:
            pieces, length = [self._buffer], len(self._buffer)
            try:
                while length < size and not self._ended:
                    piece = self._more()
                    pieces.append(piece)
                    length += len(piece)
                    self._ended = not piece
            except Damaged as damage:
                self._damage, self._ended = damage, True
            self._buffer = b"".join(pieces)
        if self._damage and not self._buffer:
            raise self._damage
        return self._buffer[:size]

    def read(self, size: int) -> bytes:
        """The next bytes, fewer at the end. Raises Damaged."""
        found = self.peek(size)
        if self._damage and len(found) < size:
            raise self._damage
        self._buffer = self._buffer[len(found) :]
        self._read += len(found)
        return found

    def readline(self, most: int = READ_BYTES) -> bytes:
        """The next line with its end, or its first bytes if it is longer than `most`. Raises Damaged."""
        end = self.peek(min(most, 4096)).find(b"\n")
        if end < 0:
            end = self.peek(most).find(b"\n")
        return self.read(end + 1 if end >= 0 else most)

    def skip(self, size: int) -> int:
        """Pass over bytes without holding them. Returns their number, smaller at the end. Raises Damaged."""
        passed = 0
        while passed < size and (piece := self.read(min(READ_BYTES, size - passed))):
            passed += len(piece)
        return passed

    def put_back(self, data: bytes) -> None:
        """Have these bytes, which were just read, read again."""
        self._buffer = data + self._buffer
        self._read -= len(data)

    def to_next(self) -> bool:
        """Go to the next line that begins a record of WARC, or that alone would be one of ARC. Whether there is one
        within reach. Raises Damaged."""
        while (self.within or not self._reach.ends(self.position)) and (line := self.readline()):
            if begins(line):
                self.put_back(line)
                return True
        return False


def begins(data: bytes) -> bool:
    """Whether data begins with the head of a record."""
    return bool(WARC_HEAD.match(data) or ARC_HEAD.match(data))


def sections(file: BinaryIO, on_damage: Callable[[Damaged], None], reach: Reach) -> Iterator[Section]:
    """The sections of an archive that are within reach. `on_damage` gets each damaged part between them. A file of
    Zstandard is read from its beginning. Raises OSError."""
    start = file.read(4)
    file.seek(0)
    if ZSTD.match(start):
        from fastwarc import ZstdReader

        yield Section(functools.partial(_unpacked, ZstdReader(file)), 0, within=True, reach=reach)
    elif start.startswith(MAGIC[:2]):
        yield from _Gzip(file, on_damage, reach).sections()
    else:
        at = file.seek(max(0, reach.start - 1))  # a line that begins in this range may do so with its first byte
        section = Section(lambda: file.read(READ_BYTES), at, within=False, reach=reach)
        if reach.start:
            while (rest := section.readline()) and not rest.endswith(b"\n"):
                pass
        yield section


def _unpacked(file: Any) -> bytes:
    """The next bytes of a file of Zstandard, by FastWARC's reader, which knows frames that are dictionaries. Raises
    Damaged, also if only the frame after these bytes is."""
    try:
        data: bytes = file.read(ZSTD_BYTES)
    except OSError as error:
        raise Damaged(file.frame_start_position(), str(error)) from error
    return data


class _Gzip:
    """The members of a file, read once, from the first within reach."""

    def __init__(self, file: BinaryIO, on_damage: Callable[[Damaged], None], reach: Reach) -> None:
        self._file, self._on_damage, self._reach = file, on_damage, reach
        self._member, self._begun = 0, False
        self._go_to(0)

    def sections(self) -> Iterator[Section]:
        """See `sections`."""
        if self._reach.start and not self._search(self._reach.start):
            return
        while self._start():
            if self._reach.ends(self._member):
                self._reach.after = self._member
                return
            section = Section(self._more, self._member, within=True, reach=self._reach)
            yield section
            try:
                while section.read(READ_BYTES):
                    pass
            except Damaged as damage:
                if not self._search(damage.offset + 1):
                    return

    def _go_to(self, offset: int) -> None:
        self._file.seek(offset)
        self._raw, self._raw_at = b"", offset  # bytes of the file that weren't unpacked yet, and their offset
        self._unpack: Unpacker | None = None
        self._first = b""  # the beginning of a member that begins with a record
        self._damage: Damaged | None = None  # right after a section

    def _start(self) -> bool:
        """Go to the next member, past damage. Whether there is one."""
        while not self._first:
            try:
                if self._damage:
                    raise self._damage
                if not self._next_member():
                    self._reach.after = self._raw_at
                    return False
                self._first = self._piece()
            except Damaged as damage:
                self._on_damage(damage)
                if not self._search(damage.offset + 1):
                    return False
        return True

    def _more(self) -> bytes:
        """The next bytes of a section, none at its end."""
        if self._first and not self._begun:
            self._begun, first, self._first = True, self._first, b""
            return first
        while not (piece := self._piece()):
            try:
                if not self._next_member():
                    return b""
                piece = self._piece()
            except Damaged as damage:  # which isn't the fault of the section
                self._damage = damage
                return b""
            if begins(piece):
                self._first = piece
                return b""
            if piece:
                return piece
        return piece

    def _next_member(self) -> bool:
        """Begin the next member, after any padding. Whether there is one. Raises Damaged."""
        while (raw := self._fill(len(MAGIC)).lstrip(b"\0")) != self._raw:
            self._raw_at += len(self._raw) - len(raw)
            self._raw = raw
        if not self._raw:
            return False
        self._member, self._begun = self._raw_at, False
        if not self._raw.startswith(MAGIC[: len(self._raw)]):
            raise Damaged(self._member, "no gzip data")
        self._unpack = zlib.decompressobj(31)
        return True

    def _piece(self) -> bytes:
        """The next bytes of this member, none at its end. Raises Damaged."""
        while self._unpack is not None and not self._unpack.eof:
            raw = self._fill(1)
            if not raw:
                raise Damaged(self._member, "the file ends within gzip data")
            try:
                piece: bytes = self._unpack.decompress(raw, READ_BYTES)
            except zlib.error as error:
                raise Damaged(self._member, str(error)) from error
            left = self._unpack.unused_data if self._unpack.eof else self._unpack.unconsumed_tail
            self._raw_at += len(raw) - len(left)
            self._raw = left
            if piece:
                return piece
        return b""

    def _fill(self, size: int) -> bytes:
        while len(self._raw) < size and (piece := self._file.read(READ_BYTES)):
            self._raw += piece
        return self._raw

    def _search(self, at: int) -> bool:
        """Go to the first member from here on that begins with a record. Whether there is one within reach."""
        self._file.seek(at)
        data = b""
        while not self._reach.ends(at) and (piece := self._file.read(READ_BYTES)):
            data += piece
            found = data.find(MAGIC)
            while found >= 0 and not self._reach.ends(at + found):
                if self._begins_at(at + found):
                    self._go_to(at + found)
                    return True
                self._file.seek(at + len(data))
                found = data.find(MAGIC, found + 1)
            at, data = at + len(data) - len(MAGIC) + 1, data[-len(MAGIC) + 1 :]
        return False

    def _begins_at(self, offset: int) -> bool:
        self._file.seek(offset)
        try:
            return begins(zlib.decompressobj(31).decompress(self._file.read(4096), 4096))
        except zlib.error:
            return False
