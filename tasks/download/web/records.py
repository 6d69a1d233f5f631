"""The records of WARC (ISO 28500), WET and ARC files, one at a time, each with its offset.

Records are separated here, as a wrong length must cost one record: FastWARC 2.0 gives a record that ends before its
length without an error, stops at one whose length is too small, and doesn't read ARC. A record counts as sound if what
follows it is the next one or the end. FastWARC takes apart what was sent by HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from tasks.download.sources.rows import Refused
from tasks.download.web.sections import ARC_HEAD, LONGEST_HEAD, Damaged, Reach, Section, begins, sections

GAP = 4096  # bytes of blank lines between records


class Record(NamedTuple):
    """A record: its type and other header fields in lower case, its block, and its place in the file."""

    kind: str
    fields: dict[str, str]
    block: bytes
    place: str


class NotAnArchive(Exception):
    """A file that doesn't begin with a record."""


def read_records(file: BinaryIO, name: str, limit: int, reach: Reach) -> Iterator[Record | Refused]:
    """The records of an archive within reach, damaged ones refused with their offset. A record longer than `limit`
    bytes isn't held in memory. Raises NotAnArchive, OSError."""
    damaged: list[Damaged] = []
    first = reach.start == 0
    for section in sections(file, damaged.append, reach):
        yield from _refused(damaged, name)
        at = section.offset
        try:
            if not begins(section.peek(LONGEST_HEAD)):
                if first and section.peek(1):
                    raise NotAnArchive
                if section.within:
                    yield Refused("damaged_record", f"{name} {at}", why="no record begins here")
                section.to_next()
            first = False
            if not section.within and reach.ends(section.position):
                return
            if reach.first is None:
                reach.first = section.position
            while section.peek(1):
                if not section.within and reach.ends(section.position):
                    break
                at = section.offset
                yield _read(section, name, limit)
            if not section.within and (not section.peek(1) or begins(section.peek(LONGEST_HEAD))):
                reach.after = section.position  # the file's size at its end
        except Damaged as damage:
            yield Refused("damaged_record", f"{name} {at}", why=damage.why)
    yield from _refused(damaged, name)


def _refused(damaged: list[Damaged], name: str) -> Iterator[Refused]:
    while damaged:
        damage = damaged.pop(0)
        yield Refused("damaged_record", f"{name} offset {damage.offset}", why=damage.why)


def _read(section: Section, name: str, limit: int) -> Record | Refused:
    """The record that begins here. Goes to the next one, or to the section's end."""
    place = f"{name} {section.offset}"
    head = section.readline()
    kind, fields = _of_arc(head) if ARC_HEAD.match(head) else _of_warc(section)
    stated = fields.get("content-length", "")
    if not stated.isdecimal() or not stated.isascii() or len(stated) > 18:
        section.to_next()
        return Refused("damaged_record", place, why="it has no valid length")
    length = int(stated)
    if length > limit:
        passed = section.skip(length)
        whole = passed == length and _ends(section)
        if not whole:
            section.to_next()
        address = fields.get("warc-target-uri", "").strip("<>")
        return (
            Refused("too_long", place, why=address)
            if whole
            else Refused("damaged_record", place, why=_short(passed, length))
        )
    block = section.read(length)
    if len(block) < length:
        section.put_back(block)
        section.to_next()  # the next one may lie within what was taken for its block
        return Refused("damaged_record", place, why=_short(len(block), length))
    if not _ends(section):
        section.put_back(block)
        section.to_next()
        return Refused("damaged_record", place, why=f"its length isn't {length:,}, as it says")
    return Record(kind, fields, block, place)


def _short(found: int, length: int) -> str:
    return f"it ends after {found:,} of {length:,} bytes"


def _of_warc(section: Section) -> tuple[str, dict[str, str]]:
    fields: dict[str, str] = {}
    name, size = "", 0
    while (line := section.readline()).strip() and size < LONGEST_HEAD:
        size += len(line)
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text[0] in " \t" and name:  # goes on from the line before
            fields[name] += f" {text.strip()}"
            continue
        name, _, value = text.partition(":")
        name = name.strip().lower()
        fields[name] = value.strip()
    return fields.get("warc-type", "").lower(), fields


def _of_arc(head: bytes) -> tuple[str, dict[str, str]]:
    found = ARC_HEAD.match(head)
    assert found is not None
    url, _, date, kind, length = (field.decode("utf-8", "replace") for field in found.groups())
    moment = f"{date[:4]}-{date[4:6]}-{date[6:8]}T{date[8:10]}:{date[10:12]}:{date[12:14] or '00'}Z"
    fields = {"warc-target-uri": url, "warc-date": moment, "content-length": length, "content-type": kind}
    return ("warcinfo" if url.startswith("filedesc:") else "response"), fields


def _ends(section: Section) -> bool:
    """Whether blank lines and then a record or the end follow. Goes there."""
    after = section.peek(GAP)
    blank = len(after) - len(after.lstrip(b"\r\n"))
    if blank < len(after) and not begins(section.peek(blank + LONGEST_HEAD)[blank:]):
        return False
    section.read(blank)
    return True
