"""The members of a tar archive (POSIX.1-1988, pax of POSIX.1-2001, GNU), read once from its beginning.

Python's tarfile takes a damaged header for the end of the archive, and keeps all members in memory. Here the next
sound header is searched for, and what is missing is named with its offset. Nothing is unpacked onto the disk.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from tasks.download.sources.rows import Refused

BLOCK = 512
ZEROS = bytes(BLOCK)
FILES, FOLDER, LINKS, DEVICES = (b"0", b"\0", b"7"), b"5", (b"1", b"2"), (b"3", b"4", b"6")
LONG_NAME, LONG_LINK, PAX, PAX_FOR_ALL = b"L", b"K", b"x", b"g"
OUTSIDE = re.compile(r"^[/\\]|^[A-Za-z]:|(?:^|[/\\])\.\.(?:[/\\]|$)")
LONGEST = 1 << 20  # bytes of a name or of pax fields
MOST_DIGITS = 20  # of a size
READ_BYTES = 1 << 16


class Member(NamedTuple):
    """A file in an archive, to be read before the next one. `why` says why it must not be read, if so."""

    name: str
    size: int
    file: BinaryIO
    why: str = ""


class _Source:
    """Bytes in order, with the offset of the next one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.offset = file, 0

    def some(self, size: int) -> bytes:
        """At most so many bytes, none at the end."""
        data = self._file.read(min(size, READ_BYTES))
        self.offset += len(data)
        return data

    def read(self, size: int) -> bytes:
        """So many bytes, fewer at the end."""
        parts, left = [], size
        while left and (data := self.some(left)):
            parts.append(data)
            left -= len(data)
        return b"".join(parts)

    def skip(self, size: int) -> int:
        """Pass over bytes. Returns their number."""
        left = size
        while left and (data := self.some(left)):
            left -= len(data)
        return size - left


class _Piece(io.RawIOBase):
    """A member's bytes. Raises EOFError if the archive ends before they do."""

    def __init__(self, source: _Source, size: int) -> None:
        super().__init__()
        self._source, self.left = source, size

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer. Returns the number of bytes."""
        data = self._source.some(min(len(buffer), self.left))
        if not data and self.left:
            raise EOFError("the archive ends within it")
        self.left -= len(data)
        buffer[: len(data)] = data
        return len(data)


def is_tar(data: bytes) -> bool:
    """Whether data begins with the header of a member."""
    return len(data) >= BLOCK and _head(data[:BLOCK]) is not None


def unsafe(member: Member) -> str:
    """Why a member must not be read: its path leads out of the archive, or it isn't a plain file. Empty otherwise."""
    return "its path leads out of the archive" if OUTSIDE.search(member.name) else member.why


def read_tar(file: BinaryIO, place: str) -> Iterator[Member | Refused]:
    """The members of an archive but for folders, and what is damaged, at an offset in it. Raises OSError if what packs
    the archive is damaged: then `place` and the offset are all that is known."""
    source = _Source(file)
    try:
        yield from _members(source, place)
    except (EOFError, OSError) as error:
        from tasks.download.sources.containers.unpacked import Bomb

        reason = "bomb" if isinstance(error, Bomb) else "damaged_archive"
        yield Refused(reason, f"{place} offset {source.offset}", why=str(error))


def _members(source: _Source, place: str) -> Iterator[Member | Refused]:
    ended, lost = False, False
    fields: dict[str, str] = {}  # of the next member, by the headers before it
    while True:
        at = source.offset
        block = source.read(BLOCK)
        if block == ZEROS:
            ended = True
            continue
        if len(block) < BLOCK:
            if block.strip(b"\0") or not ended:
                yield Refused("damaged_archive", f"{place} offset {at}", why="it ends without its end mark")
            return
        head = _head(block)
        if head is None:
            if not lost:
                yield Refused("damaged_archive", f"{place} offset {at}", why="no member begins here")
            lost = True
            continue
        ended = lost = False
        name, kind, size = head
        if kind in (LONG_NAME, LONG_LINK, PAX, PAX_FOR_ALL):
            data = source.read(size) if size <= LONGEST else b""
            if size > LONGEST:
                source.skip(size)
                yield Refused("damaged_archive", f"{place} offset {at}", why="its header is too long")
            source.skip(-size % BLOCK)
            fields |= _named(kind, data)
            continue
        name, size = fields.get("path", name), _number(fields.get("size", ""), size)
        sparse = any(field.startswith("GNU.sparse") for field in fields)
        fields = {}
        piece = _Piece(source, size)
        if kind != FOLDER and not (kind == b"\0" and name.endswith("/")):
            yield Member(name, size, io.BufferedReader(piece), _why(kind, sparse))
        source.skip(piece.left)
        source.skip(-size % BLOCK)


def _why(kind: bytes, sparse: bool) -> str:
    if kind in LINKS:
        return "a link"
    if kind in DEVICES:
        return "a device or pipe"
    if sparse or kind not in FILES:
        return "a sparse file" if sparse or kind == b"S" else f"of the unknown type {kind.decode('latin-1')!r}"
    return ""


def _head(block: bytes) -> tuple[str, bytes, int] | None:
    """Name, type and size of the member whose header a block is. None if it isn't one."""
    stated = _octal(block[148:156])
    counted = block[:148] + b" " * 8 + block[156:]
    signed = sum(byte - 256 if byte > 127 else byte for byte in counted)  # as some old programs count
    size = _octal(block[124:136])
    if size is None or stated not in (sum(counted), signed):
        return None
    name = _text(block[:100])
    if block[257:263] == b"ustar\0" and (prefix := _text(block[345:500])):
        name = f"{prefix}/{name}"
    return name, block[156:157], size


def _octal(field: bytes) -> int | None:
    """A number in octal digits, or in GNU's binary form. None if it is neither."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    return None if digits.strip(b"01234567") else int(digits or b"0", 8)  # `int` takes signs and underscores too


def _number(text: str, usual: int) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else usual


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "replace")


def _named(kind: bytes, data: bytes) -> dict[str, str]:
    """The fields that an extended header has for the next member."""
    if kind == LONG_NAME:
        return {"path": _text(data)}
    fields = {}
    while kind == PAX and data:
        length, _, rest = data.partition(b" ")
        size = int(length) if length.isdigit() and len(length) <= MOST_DIGITS else 0
        name, _, value = rest[: max(0, size - len(length) - 2)].partition(b"=")
        fields[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        data = data[size:] if size else b""
    return fields
