"""The body of a response as archives have it: in chunks or compressed, or as if it still were.

Many crawlers unpack bodies but keep the headers that say they are packed. So what can't be undone is taken as it is if
it looks like text. FastWARC undoes brotli and Zstandard.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

CHUNK = re.compile(rb"\s*([0-9a-fA-F]{1,16})[^\r\n]*\r?\n")
GZIP = ("gzip", "x-gzip", "deflate")
AS_IT_IS = ("", "identity")
MARKUP = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*<[!a-zA-Z?]")  # how HTML begins


class Body(NamedTuple):
    """An unpacked body, of at most one byte more than the limit. `cut` says that it ends too early."""

    content: bytes
    cut: bool = False


def body_of(packed: bytes, headers: Mapping[str, str], limit: int, others: Callable[[], bytes]) -> Body | None:
    """The body of a response with these headers, whose names are in lower case. `others` undoes packings that aren't
    gzip or deflate. None if it can't be unpacked."""
    body = Body(packed)
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = _joined(packed)
    encodings = [name.strip() for name in headers.get("content-encoding", "").lower().split(",")]
    for encoding in reversed([name for name in encodings if name not in AS_IT_IS]):
        found = _inflated(body.content, limit) if encoding in GZIP else None
        if encoding in ("br", "zstd") and not MARKUP.match(body.content):
            try:
                return Body(others())
            except (OSError, ValueError):
                return None
        if found is None and not MARKUP.match(body.content):
            return None
        body = found._replace(cut=found.cut or body.cut) if found else body
    return body._replace(content=body.content[: limit + 1])


def _joined(packed: bytes) -> Body:
    """The chunks of a body without their sizes, or the body as it is if it isn't in chunks."""
    pieces: list[bytes] = []
    at = 0
    while found := CHUNK.match(packed, at):
        size = int(found[1], 16)
        if not size:
            return Body(b"".join(pieces))
        pieces.append(packed[found.end() : found.end() + size])
        at = found.end() + size
    return Body(b"".join(pieces), cut=True) if pieces else Body(packed)


def _inflated(packed: bytes, limit: int) -> Body | None:
    """The content of gzip, zlib or plain deflate, None if it is none of these."""
    for window in (47, -15):  # the first recognises gzip and zlib by their headers
        unpack = zlib.decompressobj(window)
        pieces, size = [], 0
        try:
            while packed and size <= limit and not unpack.eof:
                pieces.append(unpack.decompress(packed, limit + 1 - size))
                size += len(pieces[-1])
                packed = unpack.unconsumed_tail
        except zlib.error:
            if not size:
                continue
        if size:
            return Body(b"".join(pieces), cut=not unpack.eof and size <= limit)
    return None
