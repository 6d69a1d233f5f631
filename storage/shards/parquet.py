"""Parquet with a checksum in every page, which is checked when the page is read.

An artifact's files are hashed before a stage reads them, but a shard that is read by itself has only this. A page costs
one CRC-32. Files without checksums, from other programs, are read as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import DamagedArtifact


def parquet_writer(path: Path, schema: pa.Schema, **options: Any) -> pq.ParquetWriter:
    """A writer, with pyarrow's options."""
    return pq.ParquetWriter(path, schema, write_page_checksum=True, **options)


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a file to read in the block. Raises DamagedArtifact if it can't be read, here or in the block."""
    try:
        # Of a path pyarrow first asks which file system has it. With `pre_buffer` another thread reads each column
        with (
            pa.OSFile(str(path)) as source,
            pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False) as file,
        ):
            yield file
    except (OSError, pa.ArrowException, KeyError, UnicodeDecodeError) as error:
        raise DamagedArtifact(
            f"{path} can't be read as a Parquet shard: {error}.",
            "Run `gristmill store verify`, then --refresh its stage.",
        ) from error


def read_columns(path: Path, names: Sequence[str] | None = None) -> pa.Table:
    """Some columns of a file, or all. Raises DamagedArtifact."""
    with open_parquet(path) as file:
        return file.read(None if names is None else list(names), use_threads=False)
