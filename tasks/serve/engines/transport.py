"""A transport of httpx for engines nearby: a connection for each request, to a Unix socket or to a host without TLS.

httpx's own spends 120 µs of CPU time more on each token of a stream. It pools connections, encrypts and knows proxies,
which an engine nearby doesn't need, so it stays the one for distant servers. Only what HTTP/1.1 servers send to a
request with `Connection: close` is read here (RFC 9112).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack

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
        try:
            async with asyncio.timeout(seconds.get("connect")):
                reader, writer = await self._connect(request.url)
        except TimeoutError as error:
            raise httpx.ConnectTimeout("no connection in time") from error
        except OSError as error:
            raise httpx.ConnectError(error.strerror or str(error)) from error
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
    """The body of a response, without its framing. One timer watches over all reads, as one for each costs more than
    the read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float | None) -> None:
        self._reader, self._writer, self._seconds = reader, writer, seconds
        self._length: int | None = None
        self._chunked = False
        self._loop = asyncio.get_running_loop()
        self._waits_since: float | None = None  # None while the reader of the body does something else
        self._timer = self._loop.call_later(seconds, self._watch) if seconds is not None else None

    def _watch(self) -> None:
        assert self._seconds is not None
        now = self._loop.time()
        left = (self._waits_since or now) + self._seconds - now
        if left > 0:
            self._timer = self._loop.call_later(left, self._watch)
        else:
            self._reader.set_exception(TimeoutError())

    def expect(self, headers: httpx.Headers) -> None:
        """Take the framing of the body from the response's headers."""
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length", "")
        self._length = int(length) if length.isdecimal() and not self._chunked else None

    async def head(self) -> bytes:
        """The status line and the headers."""
        return await self._within(self._reader.readuntil(b"\r\n\r\n"))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._chunked:
            async for chunk in self._chunks():
                yield chunk
            return
        left = self._length
        while left is None or left > 0:
            data = await self._within(self._reader.read(READ))
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
            data = await self._within(self._reader.read(READ))
            if not data:
                raise httpx.RemoteProtocolError("the body ended before its last chunk")
            received += data

    async def _within(self, read: Awaitable[bytes]) -> bytes:
        self._waits_since = self._loop.time()
        try:
            return await read
        except TimeoutError as error:
            raise httpx.ReadTimeout("no answer in time") from error
        except asyncio.IncompleteReadError as error:
            raise httpx.RemoteProtocolError("the connection closed before an answer") from error
        except asyncio.LimitOverrunError as error:
            raise httpx.RemoteProtocolError("the headers are too long") from error
        except OSError as error:
            raise httpx.ReadError(error.strerror or str(error)) from error
        finally:
            self._waits_since = None

    async def aclose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._writer.transport.abort()  # at once: what is left of an aborted answer is of no use


def _size(line: bytes) -> int:
    digits = line.split(b";", 1)[0].strip()
    if not digits or digits.strip(b"0123456789abcdefABCDEF"):
        raise httpx.RemoteProtocolError(f"not the size of a chunk: {line[:40]!r}")
    return int(digits, 16)
