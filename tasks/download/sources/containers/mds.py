"""Samples of shards in MDS, the form of MosaicML's streaming data sets, raw or compressed by Zstandard.

A shard is: the number of samples (uint32), the offset of each and of the end (uint32), JSON with the columns' names,
encodings and sizes, and the samples. A sample is the sizes (uint32) of the values whose column has none, and the
values. See streaming/base/format/mds/ of mosaicml/streaming. Pickles, images and arrays stay bytes, which metadata
leaves out.
"""

from __future__ import annotations

import itertools
import json
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, BinaryIO

from storage.errors import SourceError
from tasks.download.sources.containers.unpacked import unpacked
from tasks.download.sources.rows import Refused, Row

INDEX = "index.json"
U32 = 4  # bytes
NUMBERS = {
    "int": "<q", "int8": "<b", "int16": "<h", "int32": "<i", "int64": "<q", "uint8": "<B", "uint16": "<H",
    "uint32": "<I", "uint64": "<Q", "float16": "<e", "float32": "<f", "float64": "<d",
}  # fmt: skip
TEXTS: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "str_int": int,
    "str_float": float,
    "str_decimal": Decimal,
    "json": json.loads,
}
BROKEN = (ValueError, struct.error, RecursionError, InvalidOperation)
READ_BYTES = 1 << 20
LONGEST_HEAD = 1 << 20  # bytes of the columns' description


class _BrokenShard(Exception):
    """The shard isn't one, or ends early. The message says why."""


def check_index(shards: set[Path]) -> None:
    """Raises SourceError if the index beside shards names one that isn't among them: it wasn't copied, say."""
    for folder in sorted({path.parent for path in shards}):
        path = folder / INDEX
        if not path.is_file():
            continue
        try:
            named = [shard["raw_data"]["basename"] for shard in json.loads(path.read_bytes())["shards"]]
        except (OSError, KeyError, TypeError, *BROKEN) as error:
            raise SourceError(f"{path} isn't an index of MDS: {error!r}.", "Replace it, or remove it.") from error
        here = {shard.name.removesuffix(".zstd") for shard in shards if shard.parent == folder}
        if missing := [name for name in named if name not in here]:
            raise SourceError(
                f"{path} names {len(named):,} shards, of which {len(missing):,} aren't among the files to read (first "
                f"{missing[0]}).",
                "Copy them, name them in `paths`, or remove the index to read the others.",
            )


def read_mds(path: Path, name: str, limit: int) -> Iterator[Row | Refused]:
    """The samples of a shard. Those longer than `limit` bytes aren't held in memory. Each that a cut or wrong offsets
    took is refused. Raises SourceError for what isn't a shard."""
    with path.open("rb") as packed, unpacked(packed, ".zst" if path.suffix == ".zstd" else "") as file:
        try:
            sizes, columns = _head(file)
        except (_BrokenShard, OSError) as error:
            raise SourceError(
                f"{path} is not a shard of MDS, or only its beginning: {error}.",
                "Replace it, or remove it from `paths`.",
            ) from error
        for number, size in enumerate(sizes, 1):
            place = f"{name} row {number}"
            try:
                if size > limit:
                    _read(file, size, keep=False)
                    yield Refused("too_long", place)
                    continue
                data = _read(file, size)
            except (_BrokenShard, OSError) as error:
                rest = range(number, len(sizes) + 1)
                yield from (Refused("damaged_archive", f"{name} row {lost}", why=str(error)) for lost in rest)
                return
            try:
                yield Row(_values(data, columns), place)
            except UnicodeDecodeError:
                yield Refused("invalid_utf8", place)
            except BROKEN as error:
                yield Refused("broken_sample", place, why=str(error))


def _read(file: BinaryIO, size: int, keep: bool = True) -> bytes:
    parts, left = [], size
    while left:
        data = file.read(min(left, READ_BYTES))
        if not data:
            raise _BrokenShard("the shard ends before it")
        left -= len(data)
        parts += [data] if keep else []
    return b"".join(parts)


def _head(file: BinaryIO) -> tuple[array[int], list[tuple[str, str, int | None]]]:
    """The size of each sample, and name, encoding and size (None if it varies) of each column."""
    count = int.from_bytes(_read(file, U32), "little")
    offsets = array("I", _read(file, U32 * (count + 1)))
    before = U32 * (count + 2)
    sizes = array("I", (0,)) * 0
    for first, last in itertools.pairwise(offsets):
        if last < first:
            raise _BrokenShard("its offsets don't rise")
        sizes.append(last - first)
    if not before <= offsets[0] <= before + LONGEST_HEAD:
        raise _BrokenShard("its first offset is wrong")
    try:
        told = json.loads(_read(file, offsets[0] - before))
        names, encodings, stated = (told[f"column_{what}"] for what in ("names", "encodings", "sizes"))
        columns = [*zip(map(str, names), map(str, encodings), stated, strict=True)]
    except (KeyError, TypeError, *BROKEN) as error:
        raise _BrokenShard(f"its columns can't be read ({error!r})") from error
    if any(size is not None and (not isinstance(size, int) or size < 0) for _, _, size in columns):
        raise _BrokenShard("a column has a wrong size")
    return sizes, columns


def _values(data: bytes, columns: list[tuple[str, str, int | None]]) -> dict[str, Any]:
    """The values of a sample by column. Raises ValueError, struct.error."""
    varying = sum(size is None for _, _, size in columns)
    sizes = iter(struct.unpack_from(f"<{varying}I", data))
    at = U32 * varying
    values = {}
    for name, encoding, size in columns:
        end = at + (next(sizes) if size is None else size)
        if end > len(data):
            raise ValueError(f"{name} ends beyond the sample")
        values[name] = _value(encoding, data[at:end])
        at = end
    return values


def _value(encoding: str, data: bytes) -> Any:
    if encoding in TEXTS:
        return TEXTS[encoding](data.decode("utf-8"))
    return struct.unpack(NUMBERS[encoding], data)[0] if encoding in NUMBERS else data
