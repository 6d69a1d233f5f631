"""Token shards: a header and a flat array of token ids.

    bytes 0–255    header: magic, format, item size, vocabulary size, EOS id, counts, tokenizer digest, checksum
    then           token ids, little-endian uint16 or uint32 depending on the vocabulary size
    then           uint64 start of each document, and the end of the last one

The tokenizer's digest accompanies the ids everywhere (law 6). Ids are checked against the vocabulary once, when they
are written, and never clamped. Shards are read through a memory map.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from storage.errors import DamagedArtifact, StoreError, TokenizerMismatch
from storage.shards.arrays import AnyInt, UInt16, UInt32, UInt64

MAGIC = b"GRISTTOK"
FORMAT = 1
HEADER_BYTES = 256
_HEADER = struct.Struct("<8sIIIIQQQ32s32s")  # magic, format, item size, then the fields of TokenHeader

TokenArray = UInt16 | UInt32


@dataclass(frozen=True)
class TokenHeader:
    """The header of a shard. `text_bytes` counts the UTF-8 bytes that the tokens encode, for bits per byte."""

    vocab_size: int
    eos_id: int
    tokens: int
    documents: int
    text_bytes: int
    tokenizer_digest: str
    checksum: str

    @property
    def dtype(self) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
        """uint16 if every id fits, otherwise uint32."""
        return np.dtype("<u2") if self.vocab_size <= 1 << 16 else np.dtype("<u4")


@dataclass(frozen=True)
class TokenShard:
    """An open shard with memory-mapped `ids`. Document i is `ids[starts[i]:starts[i + 1]]`, EOS included."""

    header: TokenHeader
    ids: TokenArray
    starts: UInt64


class TokenWriter:
    """Writes one shard as a stream of documents. A context manager: on an error the file is deleted, otherwise `header`
    is available afterwards."""

    header: TokenHeader

    def __init__(self, path: Path, *, vocab_size: int, eos_id: int, tokenizer_digest: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._draft = TokenHeader(vocab_size, eos_id, 0, 0, 0, tokenizer_digest, "")
        self._lengths = [np.zeros(1, np.uint64)]
        self._text_bytes = 0
        self._checksum = hashlib.sha256()

    def add(self, ids: AnyInt, lengths: AnyInt, *, text_bytes: int) -> None:
        """Append documents: their concatenated ids, the number of ids of each, and the bytes of text that they encode.

        Raises StoreError for an id outside the vocabulary.
        """
        vocab_size = self._draft.vocab_size
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
            raise StoreError(
                f"A token id of {self._path.name} is outside the vocabulary of {vocab_size:,} "
                f"({ids.min()} to {ids.max()}).",
                "The ids are not from this tokenizer: rerun with --refresh tokenizer.",
            )
        self._write(ids.astype(self._draft.dtype))
        self._lengths.append(lengths.astype(np.uint64))
        self._text_bytes += text_bytes

    def __enter__(self) -> TokenWriter:
        self._file = self._path.open("wb")
        self._file.seek(HEADER_BYTES)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        with self._file:
            if kind is None:
                self._finish()
        if kind is not None:
            self._path.unlink()

    def _write(self, part: AnyInt) -> None:
        self._checksum.update(part.data)
        self._file.write(part.data)

    def _finish(self) -> None:
        starts = np.cumsum(np.concatenate(self._lengths), dtype="<u8")
        self._write(starts)
        self.header = replace(
            self._draft,
            tokens=int(starts[-1]),
            documents=len(starts) - 1,
            text_bytes=self._text_bytes,
            checksum=self._checksum.hexdigest(),
        )
        self._file.seek(0)
        self._file.write(_pack(self.header))


def write_tokens(
    path: Path, documents: Iterable[AnyInt], *, vocab_size: int, eos_id: int, tokenizer_digest: str, text_bytes: int
) -> TokenHeader:
    """Write one shard from one array of ids per document. Raises StoreError for an id outside the vocabulary."""
    with TokenWriter(path, vocab_size=vocab_size, eos_id=eos_id, tokenizer_digest=tokenizer_digest) as writer:
        for ids in documents:
            writer.add(ids, np.array([len(ids)]), text_bytes=0)
        writer.add(np.empty(0, np.uint32), np.empty(0, np.int64), text_bytes=text_bytes)
    return writer.header


def open_tokens(path: Path, *, tokenizer_digest: str | None = None, verify: bool = False) -> TokenShard:
    """Open a shard. Raises TokenizerMismatch for a shard of another tokenizer, and DamagedArtifact if its size, or with
    `verify` its checksum or largest id, contradicts its header."""
    header = check_header(path, tokenizer_digest=tokenizer_digest)
    ids = map_ids(path, header)
    starts = np.fromfile(path, "<u8", offset=HEADER_BYTES + ids.nbytes)
    if verify:
        _verify(path, header, ids, starts)
    return TokenShard(header, ids, starts)


def check_header(path: Path, *, tokenizer_digest: str | None = None) -> TokenHeader:
    """The header of a shard, after checking the tokenizer and the file's size. Raises TokenizerMismatch,
    DamagedArtifact."""
    header = read_header(path)
    if tokenizer_digest is not None and header.tokenizer_digest != tokenizer_digest:
        raise TokenizerMismatch(
            f"{path.name} was made with tokenizer {header.tokenizer_digest[:12]}, not {tokenizer_digest[:12]}.",
            "Tokenize again with this tokenizer: --refresh tokenize.",
        )
    size, expected = path.stat().st_size, _size(header)
    if size != expected:
        raise _damaged(path, f"has {size:,} bytes instead of {expected:,}")
    return header


def map_ids(path: Path, header: TokenHeader) -> TokenArray:
    """The memory-mapped ids of a shard. A file descriptor stays open while views exist. Raises DamagedArtifact if the
    file has disappeared since its header was read."""
    if not header.tokens:
        return np.zeros(0, header.dtype)
    try:
        return np.memmap(path, header.dtype, "r", HEADER_BYTES, (header.tokens,))
    except FileNotFoundError as error:
        raise _damaged(path, "is gone") from error


def read_header(path: Path) -> TokenHeader:
    """The header only. Raises DamagedArtifact for anything but a token shard of this format."""
    try:
        with path.open("rb") as file:
            fields = _HEADER.unpack(file.read(HEADER_BYTES)[: _HEADER.size])
    except (OSError, struct.error) as error:
        raise _damaged(path, f"lacks a header ({error})") from error
    magic, version, item, vocab_size, eos_id, tokens, documents, text_bytes, digest, checksum = fields
    if magic != MAGIC or version != FORMAT:
        raise _damaged(path, f"is not a token shard of format {FORMAT}")
    header = TokenHeader(vocab_size, eos_id, tokens, documents, text_bytes, digest.hex(), checksum.hex())
    if item != header.dtype.itemsize:
        raise _damaged(path, "has a header that contradicts itself")
    return header


def _size(header: TokenHeader) -> int:
    return HEADER_BYTES + header.tokens * header.dtype.itemsize + (header.documents + 1) * 8


def _verify(path: Path, header: TokenHeader, ids: TokenArray, starts: UInt64) -> None:
    """Read the whole shard once, without a copy. Raises DamagedArtifact."""
    checksum = hashlib.sha256(ids.data)
    checksum.update(starts.data)
    if checksum.hexdigest() != header.checksum:
        raise _damaged(path, "has changed bytes")
    if header.tokens and int(ids.max()) >= header.vocab_size:
        raise _damaged(path, f"contains the id {ids.max():,}, outside its vocabulary of {header.vocab_size:,}")


def _pack(header: TokenHeader) -> bytes:
    return _HEADER.pack(
        MAGIC,
        FORMAT,
        header.dtype.itemsize,
        header.vocab_size,
        header.eos_id,
        header.tokens,
        header.documents,
        header.text_bytes,
        bytes.fromhex(header.tokenizer_digest),
        bytes.fromhex(header.checksum),
    )


def _damaged(path: Path, problem: str) -> DamagedArtifact:
    return DamagedArtifact(f"{path} {problem}.", "Run `gristmill store verify`, then --refresh tokenize.")
