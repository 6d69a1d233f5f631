"""A transport of httpx for engines nearby: a connection for each request, to a Unix socket or to a host without TLS.

httpx's own spends 120 µs of CPU time more on each token of a stream. It pools connections, encrypts and knows proxies,
which an engine nearby doesn't need, so it stays the one for distant servers. Only what HTTP/1.1 servers send to a
request with `Connection: close` is read here (RFC 9112).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import httpx

READ = 1 << 16  # bytes at a time
LONGEST_HEAD = 1 << 16  # bytes of a status with its headers
OWN_HEADERS = (b"connection", b"accept-encoding")


class DirectTransport(httpx.AsyncBaseTransport):
    """Reaches a Unix socket, or else the host and port of each request's URL."""

    def __init__(self, socket: str | None = None) -> None:
        self.socket = socket

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The response, with its body still to be read. Closing it closes the connection. Raises httpx's exceptions."""
        seconds = request.extensions.get("timeout", {})
        body = await request.aread()
        with _as_httpx(httpx.ConnectTimeout, httpx.ConnectError):
            async with asyncio.timeout(seconds.get("connect")):
                reader, writer = await self._connect(request.url)
        answer = _Body(reader, writer, seconds.get("read"))
        async with AsyncExitStack() as closing:
            closing.push_async_callback(answer.aclose)
            writer.write(_head(request) + body)
            status, headers = _parsed(await answer.head())
            closing.pop_all()
        answer.expect(headers)
        return httpx.Response(status, headers=headers, stream=answer)

    async def _connect(self, url: httpx.URL) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.socket is not None:
            return await asyncio.open_unix_connection(self.socket, limit=LONGEST_HEAD)
        return await asyncio.open_connection(url.host, url.port or 80, limit=LONGEST_HEAD)


def _head(request: httpx.Request) -> bytes:
    headers = [(name, value) for name, value in request.headers.raw if name.lower() not in OWN_HEADERS]
    headers += [(b"Connection", b"close"), (b"Accept-Encoding", b"identity")]
    line = b"%s %s HTTP/1.1\r\n" % (request.method.encode("ascii"), request.url.raw_path)
    return line + b"".join(b"%s: %s\r\n" % header for header in headers) + b"\r\n"


def _parsed(head: bytes) -> tuple[int, httpx.Headers]:
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    try:
        version, status, *_ = first.split(b" ", 2)
        if not version.startswith(b"HTTP/1."):
            raise ValueError(version)
        pairs = [line.split(b":", 1) for line in lines]
        return int(status), httpx.Headers([(name.strip(), value.strip()) for name, value in pairs])
    except ValueError as error:
        raise httpx.RemoteProtocolError(f"not a response of HTTP/1.1: {first[:80]!r}") from error


class _Body(httpx.AsyncByteStream):
    """The body of a response, without its framing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float | None) -> None:
        self._reader, self._writer, self._seconds = reader, writer, seconds
        self._length: int | None = None
        self._chunked = False

    def expect(self, headers: httpx.Headers) -> None:
        """Take the framing of the body from the response's headers."""
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length", "")
        self._length = int(length) if length.isdecimal() and not self._chunked else None

    async def head(self) -> bytes:
        """The status line and the headers."""
        return await self._within(lambda: self._reader.readuntil(b"\r\n\r\n"))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._chunked:
            async for chunk in self._chunks():
                yield chunk
            return
        left = self._length
        while left is None or left > 0:
            data = await self._within(lambda: self._reader.read(READ))
            if not data:
                if left is not None:
                    raise httpx.RemoteProtocolError(f"the body ended {left:,} bytes early")
                return
            left = None if left is None else left - len(data)
            yield data

    async def _chunks(self) -> AsyncIterator[bytes]:
        """The chunks of RFC 9112, section 7.1. Trailers are left unread, as the connection is closed after them."""
        received = bytearray()
        while True:
            end = received.find(b"\r\n")
            if end >= 0:
                size = _size(bytes(received[:end]))
                if size == 0:
                    return
                if len(received) >= end + size + 4:
                    yield bytes(received[end + 2 : end + 2 + size])
                    del received[: end + size + 4]
                    continue
            data = await self._within(lambda: self._reader.read(READ))
            if not data:
                raise httpx.RemoteProtocolError("the body ended before its last chunk")
            received += data

    async def _within(self, read: Callable[[], Any]) -> bytes:
        with _as_httpx(httpx.ReadTimeout, httpx.ReadError):
            async with asyncio.timeout(self._seconds):
                data: bytes = await read()
        return data

    async def aclose(self) -> None:
        self._writer.transport.abort()  # at once: what is left of an aborted answer is of no use


def _size(line: bytes) -> int:
    digits = line.split(b";", 1)[0].strip()
    if not digits or digits.strip(b"0123456789abcdefABCDEF"):
        raise httpx.RemoteProtocolError(f"not the size of a chunk: {line[:40]!r}")
    return int(digits, 16)


@contextmanager
def _as_httpx(late: type[httpx.TransportError], lost: type[httpx.TransportError]) -> Any:
    """Within the block, asyncio's errors become httpx's."""
    try:
        yield
    except TimeoutError as error:
        raise late("no answer in time") from error
    except asyncio.IncompleteReadError as error:
        raise httpx.RemoteProtocolError("the connection closed before an answer") from error
    except asyncio.LimitOverrunError as error:
        raise httpx.RemoteProtocolError("the headers are too long") from error
    except OSError as error:
        raise lost(error.strerror or str(error)) from error
