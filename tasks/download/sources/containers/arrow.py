"""Rows of Arrow's IPC files and streams: the folders that Hugging Face's `datasets` saves are of streams.

A file is a stream with a table of its batches behind it, so a file that was cut is read as the stream that it still is.
Batches are checked before they are read, as wrong offsets would lead outside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from storage.errors import SourceError
from tasks.download.sources.parquet import rows_of
from tasks.download.sources.rows import Refused, Row

MAGIC, BEFORE_STREAM = b"ARROW1", 8
ROWS = 1024  # made of a batch at once
ALIGNED = 8


def read_arrow(path: Path, name: str) -> Iterator[Row | Refused]:
    """The rows of a file. What comes after damage is refused with the number of the row. Raises SourceError."""
    with pa.memory_map(str(path)) as file:
        start = BEFORE_STREAM if file.read(len(MAGIC)) == MAGIC else 0
        file.seek(start)
        number = 0
        try:
            reader = pa.ipc.open_stream(file)
            names = reader.schema.names
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise SourceError(
                f"{path} is neither a file nor a stream of Arrow: {error}.", "Replace it, or remove it from `paths`."
            ) from error
        twice = [column for column, times in Counter(names).items() if times > 1]
        if twice:
            raise SourceError(f"{path} has two columns {twice[0]}.", "Rename one, or remove the file from `paths`.")
        while True:
            at = file.tell()
            try:
                batch = reader.read_next_batch()
                batch.validate(full=True)
            except StopIteration:
                # An end without its mark: whether a stream was cut between batches can't be seen otherwise
                if not _ended(file, at):
                    yield Refused("damaged_archive", f"{name} row {number + 1}", why="it ends without its end mark")
                return
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                yield Refused("damaged_archive", f"{name} row {number + 1}", why=f"offset {at}: {_said(error)}")
                return
            for first in range(0, batch.num_rows, ROWS):
                yield from rows_of(batch.slice(first, ROWS), name, number + first)
            number += batch.num_rows


def _ended(file: pa.NativeFile, at: int) -> bool:
    """Whether the mark of a stream's end is at an offset: a length of 0, since 2019 after four bytes 0xFF."""
    file.seek(at)
    end: bytes = file.read(ALIGNED)
    return end.startswith(b"\xff\xff\xff\xff\0\0\0\0") or end.startswith(bytes(4))


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
