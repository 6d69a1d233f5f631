"""Data that is unpacked as it is read. What unpacks to far more than text ever does is a bomb, and ends with an error.

Text shrinks to a fifth, logs and tables to a fiftieth. Deflate can shrink zeros to a thousandth, Zstandard far more. A
bomb is what exceeds both limits, so a small file of blanks isn't one.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zipfile
import zlib
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

BOMB_BYTES, BOMB_RATIO = 16_000_000, 200  # unpacked bytes, and how often they are the packed ones
READ_BYTES = 1 << 13  # at once, as Arrow loses what it read just before damage
FAILURES = (zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, lzma.LZMAError)


class Passed(Protocol):
    """What counts the packed bytes that were read."""

    passed: int


class Bomb(OSError):
    """Data that unpacks to too much."""


class Counted(io.RawIOBase):
    """A file that counts what is read of it."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self.file, self.passed = file, 0

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer. Returns the number of bytes."""
        data = self.file.read(len(buffer))
        buffer[: len(data)] = data
        self.passed += len(data)
        return len(data)


class Unpacked(io.RawIOBase):
    """What a file gives that unpacks data. `packed` are its bytes that were read so far, or all of them. Raises Bomb,
    and OSError for all that unpacking may raise."""

    def __init__(self, file: Any, packed: Passed | int) -> None:
        super().__init__()
        self._read = getattr(file, "read1", file.read)  # as `read` loses what came before damage
        self._packed, self._passed = packed, 0

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer. Returns the number of bytes."""
        try:
            data: bytes = self._read(min(len(buffer), READ_BYTES))
        except FAILURES as error:
            raise OSError(str(error) or type(error).__name__) from error
        except EOFError as error:
            raise OSError("it ends within packed data") from error
        self._passed += len(data)
        packed = self._packed if isinstance(self._packed, int) else self._packed.passed
        if self._passed > BOMB_BYTES and self._passed > BOMB_RATIO * packed:
            raise Bomb(f"it unpacks to more than {BOMB_BYTES // 10**6} MB and {BOMB_RATIO} times its size")
        buffer[: len(data)] = data
        return len(data)


def unpacked(file: BinaryIO, ending: str) -> BinaryIO:
    """A file of gzip or Zstandard, or one that isn't packed, as what it holds."""
    if not ending:
        return file
    counted = Counted(file)
    if ending == ".zst":
        inner: Any = pa.CompressedInputStream(pa.PythonFile(counted, "r"), "zstd")
    else:
        inner = gzip.GzipFile(fileobj=io.BufferedReader(counted))
    return io.BufferedReader(Unpacked(inner, counted))
