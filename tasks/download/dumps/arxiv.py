"""Papers of arXiv from their sources: a tar of papers, each the gzip of a tar or of one file, or the gzip of one paper.

Members are read in memory: nothing is unpacked onto the disk. Papers that arXiv has as PDF or HTML only are removed.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tasks.download.config import DumpSource
from tasks.download.sources.containers.tar import Member, is_tar, read_tar, unsafe
from tasks.download.sources.containers.unpacked import Bomb, unpacked
from tasks.download.sources.rows import Refused, Row
from tasks.text.process import ExtractorProcess, Failed, process_of
from tasks.text.web.encoding import nearly_utf8

TEXT = (".tex", ".ltx", ".latex", ".txt", ".sty", ".cls", ".def", ".inc", "")  # endings of what may be TeX
NUMBER = re.compile(r"(?:^|/)(\d{4}\.\d{4,5}|[a-z-]+(?:\.[A-Z]{2})?/?\d{7})(?:v\d+)?(?:\.tar)?\.gz$")
OLD = re.compile(r"^([a-z-]+(?:\.[A-Z]{2})?)/?(\d{7})$")


def read_papers(path: Path, name: str, source: DumpSource, limit: int, lost: Counter[str]) -> Iterator[Row | Refused]:
    """The papers of a file, with text and metadata, and those without sources refused. `lost` counts commands that were
    left out. Raises OSError."""
    process = process_of("tasks.text.dumps.latex", (), source.seconds)
    if path.suffix == ".gz":
        with path.open("rb") as file:
            yield _paper(Member(path.name, path.stat().st_size, file), name, limit, process, lost)
        return
    with path.open("rb") as file:
        for member in read_tar(file, name):
            if isinstance(member, Refused):
                yield member
                continue
            place = f"{name}!{member.name}"
            if why := unsafe(member):
                yield Refused("unsafe_member", place, why=why)
            elif not member.name.endswith(".gz"):
                yield Refused("no_source", place, removed=True)
            elif member.size > limit:
                yield Refused("too_long", place)
            else:
                yield _paper(member, place, limit, process, lost)


def _paper(member: Member, place: str, limit: int, process: ExtractorProcess, lost: Counter[str]) -> Row | Refused:
    try:
        with unpacked(io.BytesIO(member.file.read()), ".gz") as file:
            data = file.read(limit + 1)
    except (OSError, EOFError) as error:
        return Refused("bomb" if isinstance(error, Bomb) else "damaged_member", place, why=str(error))
    if len(data) > limit:
        return Refused("too_long", place)
    files = _files(data)
    if isinstance(files, str):
        return Refused("damaged_member", place, why=files)
    if not files:
        return Refused("no_source", place, removed=True)
    found = process.read((files,))
    if isinstance(found, Failed):
        return Refused(found.reason, place, why=found.why)
    lost.update(found.pop("lost"))
    if not found["text"]:
        return Refused("no_text", place, removed=True)
    number = NUMBER.search(member.name)
    paper = OLD.sub(r"\1/\2", number.group(1)) if number else ""
    fields = {"paper_id": paper, "url": f"https://arxiv.org/abs/{paper}" if paper else ""}
    return Row({**found, **{key: value for key, value in fields.items() if value}}, place)


def _files(data: bytes) -> dict[str, str] | str:
    """The files of a paper that may be TeX, by path. Why not, if its archive is damaged."""
    if is_tar(data):
        found: dict[str, str] = {}
        for member in read_tar(io.BytesIO(data), ""):
            if isinstance(member, Refused):
                return member.why
            if not member.why and Path(member.name).suffix.lower() in TEXT:
                content = member.file.read()
                if b"\0" not in content[:1000]:
                    found[member.name.removeprefix("./")] = _decoded(content)
        return found
    begins = data[:1000].lstrip().lower()
    if begins.startswith((b"%pdf", b"%!ps", b"<html", b"<!doctype html")) or b"\0" in begins:
        return {}
    return {"paper.tex": _decoded(data)}


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return nearly_utf8(data) or data.decode("latin-1")
