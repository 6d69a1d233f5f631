"""The rows of archives: members that are text or tables are read as such files are, others are counted.

Members are read where they are, in their order: none is unpacked onto the disk, but for Parquet, which is read from an
unnamed file. A member that would be dangerous to unpack (an absolute path, `..`, a link, a device) is refused, as such
an archive isn't what it seems. What is damaged costs its member.

In WebDataset's form, tar members whose names differ only after the first dot are one sample: `7.txt` and `7.json` are a
row with the text of the one and the keys of the other.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from storage.errors import SourceError
from tasks.download.config import FileSource
from tasks.download.sources.containers.tar import Member, read_tar, unsafe
from tasks.download.sources.containers.unpacked import Bomb, unpacked
from tasks.download.sources.containers.zips import read_zip
from tasks.download.sources.parquet import read_parquet
from tasks.download.sources.rows import NOT_READ, Refused, Row
from tasks.download.sources.streams import KINDS, PACKED, kind_of, read_stream

TARS = {".tar": "", ".tar.gz": ".gz", ".tgz": ".gz", ".tar.zst": ".zst"}  # and how each is packed
CONTAINERS = (*TARS, ".zip")
READABLE = (*KINDS, *(kind + packed for kind in KINDS for packed in PACKED), ".parquet")
FIELDS = (".txt", ".md", ".json")  # of a sample
WHOLE = ("txt", "md", "json")  # the ending of a sample's main fields
BESIDE = re.compile(r"(?:^|/)(?:\._[^/]*|__MACOSX/.*)$")  # what macOS keeps of a file beside its contents
SPOOLED = 1 << 24  # bytes in memory


class _Field(NamedTuple):
    """A small member that may be a field of a sample."""

    name: str
    ending: str
    data: bytes


def read_archive(path: Path, name: str, source: FileSource, limit: int) -> Iterator[Row | Refused]:
    """The rows of an archive's members. Their places are `name`, an exclamation mark and the member's name, with the
    line or row. Members that hold no rows are refused as `removed`. Raises OSError."""
    if path.name.endswith(".zip"):
        for member in read_zip(path, name):
            if isinstance(member, Refused):
                yield member
            elif refused := _refused(member, name):
                yield refused
            else:
                yield from _read(member, name, source, limit)
        return
    ending = next(packed for end, packed in TARS.items() if path.name.endswith(end))
    with path.open("rb") as file:
        place = f"{name} unpacked" if ending else name
        yield from _samples(read_tar(unpacked(file, ending), place), name, source, limit)


def _samples(
    members: Iterator[Member | Refused], archive: str, source: FileSource, limit: int
) -> Iterator[Row | Refused]:
    """The rows of a tar archive. Small members are held until one of another key comes."""
    held: list[_Field] = []
    key, size = "", 0
    for member in members:
        if isinstance(member, Refused):
            yield member
            continue
        if refused := _refused(member, archive):
            yield refused
            continue
        if kind_of(Path(member.name)) not in FIELDS or member.size > limit:
            yield from _rows_of(held, key, archive, source, limit)
            held = []
            yield from _read(member, archive, source, limit)
            continue
        folder, _, base = member.name.rpartition("/")
        stem, _, ending = base.partition(".")
        mine = f"{folder}/{stem}" if folder else stem
        if mine != key or size + member.size > limit:
            yield from _rows_of(held, key, archive, source, limit)
            held, key, size = [], mine, 0
        try:
            held.append(_Field(member.name, ending, member.file.read()))
            size += member.size
        except (EOFError, OSError) as error:
            yield Refused("damaged_member", f"{archive}!{_shown(member.name)}", why=str(error))
    yield from _rows_of(held, key, archive, source, limit)


def _rows_of(held: list[_Field], key: str, archive: str, source: FileSource, limit: int) -> Iterator[Row | Refused]:
    """The row of a sample, or those of members that aren't one."""
    plain = [field for field in held if _bare(field.ending) in WHOLE]
    if len(held) > 1 and plain and len({_bare(field.ending) for field in held}) == len(held):
        found = _sample(held, key, archive, source, limit)
        if found is not None:
            yield found
            return
    for field in held:
        yield from _read(Member(field.name, len(field.data), io.BytesIO(field.data)), archive, source, limit)


def _sample(held: list[_Field], key: str, archive: str, source: FileSource, limit: int) -> Row | Refused | None:
    """The row of a sample, None if its JSON isn't an object: then the members aren't one."""
    place = f"{archive}!{_shown(key)}"
    values: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for field in held:
        name = _bare(field.ending)
        try:
            with unpacked(io.BytesIO(field.data), _packing(field.ending)) as file:
                data = file.read(limit + 1)
            if len(data) > limit:
                return Refused("too_long", place, why=field.ending)
            text = data.decode("utf-8-sig")
            if not name.endswith("json"):
                texts[source.text_column if name in WHOLE else name.rpartition(".")[0]] = text
            elif isinstance(found := json.loads(text), dict):
                values |= found if name == "json" else {name.removesuffix(".json"): found}
            else:
                return None
        except UnicodeDecodeError:
            return Refused("invalid_utf8", place, why=field.ending)
        except (ValueError, RecursionError):
            return None
        except (OSError, EOFError) as error:
            return Refused("damaged_member", place, why=f"{field.ending}: {error}")
    return Row({**values, **texts, "file": key.rpartition("/")[2]}, place)


def _refused(member: Member, archive: str) -> Refused | None:
    """Why a member isn't read, if it isn't."""
    place = f"{archive}!{_shown(member.name)}"
    if why := unsafe(member):
        return Refused("unsafe_member", place, why=why)
    if not member.name.endswith(READABLE) or BESIDE.search(member.name):
        return Refused(NOT_READ, place, removed=True)
    return None


def _read(member: Member, archive: str, source: FileSource, limit: int) -> Iterator[Row | Refused]:
    """The rows of a member, as of a file with its name."""
    place = f"{archive}!{_shown(member.name)}"
    path = Path(f"{archive}!") / member.name
    try:
        if path.suffix == ".parquet":
            with tempfile.SpooledTemporaryFile(SPOOLED) as spooled:
                shutil.copyfileobj(member.file, spooled)
                spooled.seek(0)
                yield from read_parquet(path, place, spooled)
            return
        file: BinaryIO = unpacked(member.file, _packing(member.name))
        yield from read_stream(file if hasattr(file, "peek") else io.BufferedReader(file), path, place, source, limit)  # type: ignore[type-var]
    except SourceError as error:
        why = error.message.removeprefix(f"{path} ").removeprefix("can't be read: ").rstrip(".")
        yield Refused("bomb" if isinstance(error.__cause__, Bomb) else "damaged_member", place, why=why)
    except (EOFError, OSError) as error:
        yield Refused("bomb" if isinstance(error, Bomb) else "damaged_member", place, why=str(error))


def _packing(name: str) -> str:
    return next((packed for packed in PACKED if name.endswith(packed)), "")


def _bare(ending: str) -> str:
    """The ending of a field without that of packed ones."""
    return ending.removesuffix(_packing(ending))


def _shown(name: str) -> str:
    return name if name.isprintable() else repr(name)
