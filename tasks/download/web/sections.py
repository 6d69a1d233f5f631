"""A web archive as a stream of sections: stretches that begin with a record.

An archive is most often compressed record by record, each a member of gzip, so that one can be read without the others.
A section is such a member with those after it that continue its record. A member that is damaged or cut costs its own
record: the next member that begins with a record is searched for. A file of one member, a file that isn't compressed,
and one of Zstandard are one section. FastWARC reads on past such places without an error, or stops at them.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

Unpacker = Any  # of zlib, which has no name for its type
READ_BYTES = 1 << 16
ZSTD_BYTES = 4096  # as those right before damage are lost with it
MAGIC = b"\x1f\x8b\x08"
WARC_HEAD = re.compile(rb"WARC/\d\.\d+\r?\n")
# ARC 1 and 2: URL, IP address, date, type, other fields in the second version, length
ARC_HEAD = re.compile(rb"([a-z]+:\S+) (\S+) (\d{12,14}) (\S+)(?: [^\r\n]*)? (\d+)\r?\n")
LONGEST_HEAD = 1 << 16  # bytes


class Damaged(Exception):
    """Compressed data that can't be read: the offset of its member in the file, and why."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(why)
        self.offset, self.why = offset, why


class Section:
    """Bytes that are read in order, some of which may be put back. `at` is the offset of the first one in the file. If
    it is compressed (`within`), `offset` counts on in what is unpacked."""

    def __init__(self, more: Callable[[], bytes], at: int, within: bool) -> None:
        self._more, self._at, self._within = more, at, within
        self._buffer = b""
        self._ended = False
        self._damage: Damaged | None = None
        self._read = 0

    @property
    def offset(self) -> str:
        """Where the next byte is, for messages."""
        if self._within:
            return f"offset {self._at}" + (f" byte {self._read}" if self._read else "")
        return f"offset {self._at + self._read}"

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


def begins(data: bytes) -> bool:
    """Whether data begins with the head of a record."""
    return bool(WARC_HEAD.match(data) or ARC_HEAD.match(data))


def sections(path: Path, on_damage: Callable[[Damaged], None]) -> Iterator[Section]:
    """The sections of an archive. `on_damage` gets each damaged part between sections. Raises OSError."""
    with path.open("rb") as file:
        if path.suffix == ".zst":
            from fastwarc import ZstdReader

            yield Section(functools.partial(_unpacked, ZstdReader(file)), 0, within=True)
        elif file.read(2) == MAGIC[:2]:
            yield from _Gzip(file, on_damage).sections()
        else:
            file.seek(0)
            yield Section(lambda: file.read(READ_BYTES), 0, within=False)


def _unpacked(file: Any) -> bytes:
    """The next bytes of a file of Zstandard, by FastWARC's reader, which knows frames that are dictionaries. Raises
    Damaged, also if only the frame after these bytes is."""
    try:
        data: bytes = file.read(ZSTD_BYTES)
    except OSError as error:
        raise Damaged(file.frame_start_position(), str(error)) from error
    return data


class _Gzip:
    """The members of a file, read once from its beginning."""

    def __init__(self, file: BinaryIO, on_damage: Callable[[Damaged], None]) -> None:
        self._file, self._on_damage = file, on_damage
        self._member, self._begun = 0, False
        self._go_to(0)

    def sections(self) -> Iterator[Section]:
        """See `sections`."""
        while self._start():
            section = Section(self._more, self._member, within=True)
            yield section
            try:
                while section.read(READ_BYTES):
                    pass
            except Damaged as damage:
                self._go_on_after(damage)

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
                    return False
                self._first = self._piece()
            except Damaged as damage:
                self._on_damage(damage)
                self._go_on_after(damage)
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

    def _go_on_after(self, damage: Damaged) -> None:
        """Go to the first member after a damaged one that begins with a record, or to the file's end."""
        at = damage.offset + 1
        self._file.seek(at)
        data = b""
        while piece := self._file.read(READ_BYTES):
            data += piece
            found = data.find(MAGIC)
            while found >= 0:
                if self._begins_at(at + found):
                    return self._go_to(at + found)
                self._file.seek(at + len(data))
                found = data.find(MAGIC, found + 1)
            at, data = at + len(data) - len(MAGIC) + 1, data[-len(MAGIC) + 1 :]
        self._go_to(self._file.seek(0, 2))

    def _begins_at(self, offset: int) -> bool:
        self._file.seek(offset)
        try:
            return begins(zlib.decompressobj(31).decompress(self._file.read(4096), 4096))
        except zlib.error:
            return False
