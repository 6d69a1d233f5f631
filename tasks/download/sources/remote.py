"""Files at an address, read in blocks: over few connections, and for as long as their server asks to wait.

HTTP is spoken by httpx, as status and headers of an answer decide what comes next. Where crawls are kept, 403, 429 and
503 all mean "later" (Common Crawl blocks clients that ask too often, for minutes), and a page that says so must never
be read as data. Buckets are read through fsspec. What was received of a block is kept when its connection dies.
"""

from __future__ import annotations

import functools
import io
import itertools
import logging
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from hashlib import sha256
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar
from urllib.parse import urlsplit

from storage.credentials import REMEDY, decoded, has_credentials
from storage.errors import ConfigError, SourceError, StoreError
from storage.files.cache import cache_folder
from storage.files.locks import hold_if_free
from storage.files.remote import may_pass, opened, unreachable
from tasks.shards.shard import check_going_on

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
HUB = "https://huggingface.co"  # unless HF_ENDPOINT names another
TOKEN_REMEDY = "Set HF_TOKEN to the token of an account that may read it. Conditions are accepted on its page."
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
BLOCK = 8 << 20  # bytes that are asked for at once
LATER = (403, 408, 425, 429, 500, 502, 503, 504)
LONGEST_PAUSE = 120.0  # seconds between two requests, unless the server asks for more
MOST_ASKED = 900.0  # seconds of a pause that a server asks for
TURN_SECONDS = 0.05
READ_SECONDS, CONNECT_SECONDS = 60.0, 20.0  # without a byte
LOOK = (10.0, 1.0)  # minutes for sizes, which a plan asks for too: a host may be mistyped
RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+)")


class Politeness(NamedTuple):
    """How many requests to a host this machine makes at a time, and how long it goes on asking one that refuses, or
    that doesn't answer at all."""

    connections: int = 2
    minutes: float = 60.0
    away_minutes: float | None = None  # None: the same


class Address(NamedTuple):
    """A file at a URL: its size in bytes, what the server calls this version of it, and whether it sends parts."""

    url: str
    size: int
    version: str
    parts: bool = True


class Later(Exception):
    """The server didn't give what it should for now: why, the seconds that it asks to wait, whether it answered."""

    def __init__(self, why: str, seconds: float | None = None, *, answered: bool = True) -> None:
        super().__init__(why.rstrip("."))
        self.seconds, self.answered = seconds, answered


def is_address(path: str) -> bool:
    """Whether a path of a source is a URL."""
    return bool(ADDRESS.match(path))


def look(url: str, polite: Politeness | None = None) -> Address:
    """The file at a URL, from its first byte. Raises ConfigError for a URL with a password, SourceError."""
    if has_credentials(url):
        raise ConfigError(f"The address {decoded(url)} holds a password or a token.", REMEDY)
    kind = _look_by_http if _is_http(url) else _look_in_bucket
    return answered(functools.partial(kind, url), url, polite or Politeness(2, *LOOK))


def match(pattern: str) -> list[str]:
    """The URLs that a URL with wildcards matches, sorted; without wildcards the URL itself. Raises SourceError."""
    if _is_http(pattern) or not re.search(r"[*?\[]", pattern):
        return [pattern]
    fs, path = _bucket(pattern)
    found = answered(lambda: _in_bucket(lambda: fs.glob(path), pattern), pattern, Politeness(2, *LOOK))
    if not found:
        raise SourceError(f"No file matches {pattern}.", "Check the address, or remove it from the source.")
    return sorted(fs.unstrip_protocol(name) for name in found)


def hub() -> str:
    """The URL of the Hugging Face hub, or of what HF_ENDPOINT names instead."""
    return (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")


def open_address(address: Address, folder: Path, polite: Politeness) -> BinaryIO:
    """The file as one that can be read and sought. One whose server sends no parts is copied first, to a nameless file
    in `folder`. Raises SourceError."""
    if address.parts:
        return io.BufferedReader(_RemoteFile(address, polite, folder), 1 << 16)
    copy = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  the caller closes it
    answered(lambda: _copy(address, copy), address.url, polite, folder=folder)
    copy.seek(0)
    return copy


class _Seekable(io.RawIOBase):
    """A file at an address that is read from any offset."""

    def __init__(self, address: Address) -> None:
        self._address, self._at = address, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to an offset, as `io.IOBase.seek` does."""
        self._at = offset + (0, self._at, self._address.size)[whence]
        return self._at


class _RemoteFile(_Seekable):
    """A file whose blocks are fetched when they are read. The last two are kept."""

    def __init__(self, address: Address, polite: Politeness, folder: Path) -> None:
        super().__init__(address)
        self._block = functools.lru_cache(2)(functools.partial(_fetch_block, address, polite, folder))

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as the block reaches. Returns the bytes, 0 at the end."""
        number, within = divmod(self._at, BLOCK)
        if self._at >= self._address.size:
            return 0
        view = memoryview(buffer)
        data = self._block(number)[within : within + len(view)]
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


class RangedFile(_Seekable):
    """A file of which the bytes that are read are fetched, and no others: at once those that `expect` names."""

    def __init__(self, address: Address, polite: Politeness) -> None:
        super().__init__(address)
        self._fetch = functools.partial(_fetch, address, polite)
        self._start, self._held = 0, b""

    def expect(self, start: int, end: int) -> None:
        """Fetch the bytes from `start` to `end`, and hold them until the next call. Raises SourceError."""
        self._start, self._held = start, b""  # the old ones go first
        self._held = self._fetch(start, min(end, self._address.size))

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes, all that are left if it is negative. Raises SourceError."""
        start, left = self._at, max(0, self._address.size - self._at)
        self._at += left if size < 0 else min(size, left)
        if self._start <= start and self._at <= self._start + len(self._held):
            return self._held[start - self._start : self._at - self._start]
        return self._fetch(start, self._at)


def _fetch_block(address: Address, polite: Politeness, folder: Path, number: int) -> bytes:
    return _fetch(address, polite, number * BLOCK, min((number + 1) * BLOCK, address.size), folder)


def _fetch(address: Address, polite: Politeness, start: int, end: int, folder: Path | None = None) -> bytes:
    """Some bytes of a file. Raises SourceError, Stopped."""
    data = bytearray()
    receive = _receive_by_http if _is_http(address.url) else _receive_from_bucket
    while len(data) < end - start:
        answered(lambda: receive(address, start + len(data), end, data), address.url, polite, lambda: len(data), folder)
    return bytes(data)


def answered(
    request: Callable[[], T],
    url: str,
    polite: Politeness,
    received: Callable[[], int] = lambda: 0,
    folder: Path | None = None,
) -> T:
    """What a request gives, made again while the server is away or refuses. Patience begins again with every byte that
    it sends. Raises SourceError, and Stopped if the work that writes into `folder` isn't waited for any longer."""
    began, attempt, before = time.monotonic(), 0, received()
    while True:
        try:
            with _turn(url, polite.connections):
                return request()
        except Later as later:
            if received() > before:
                began, attempt, before = time.monotonic(), 0, received()
            doubling = min(LONGEST_PAUSE, 2.0**attempt) * random.uniform(0.5, 1)
            pause = doubling if later.seconds is None else min(MOST_ASKED, later.seconds)
            minutes = polite.minutes if later.answered or polite.away_minutes is None else polite.away_minutes
            if time.monotonic() + pause > began + 60 * minutes:
                raise SourceError(
                    f"{url} can't be read: {later}.",
                    "Check the address and the network, or try again later: servers refuse clients that ask too often.",
                ) from later
            if pause >= 1:
                logging.getLogger(__name__).warning("%s: %s. Asking again in %.0f s.", url, later, pause)
            until = time.monotonic() + pause
            while (left := until - time.monotonic()) > 0:
                if folder:
                    check_going_on(folder)
                time.sleep(min(1.0, left))
            attempt += 1


@contextmanager
def _turn(url: str, most: int) -> Iterator[None]:
    """One of `most` requests to a host that processes of this machine make at a time."""
    host = sha256((urlsplit(url).hostname or url).encode()).hexdigest()[:16]
    for number in itertools.cycle(range(most)):
        with hold_if_free(cache_folder() / "connections" / f"{host}.{number}") as held:
            if held:
                yield
                return
        if number == most - 1:
            time.sleep(TURN_SECONDS)


def _is_http(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


@functools.cache
def _client(process: int) -> httpx.Client:
    """The client of this process. One that was made before a fork would share its connections."""
    import httpx

    return httpx.Client(
        headers={"User-Agent": f"gristmill/{installed('gristmill')}", "Accept-Encoding": "identity"},
        timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        follow_redirects=True,
    )


@contextmanager
def _response(url: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
    """The answer to a request, read within the block: 200, 206 or 416. Raises Later, SourceError."""
    import httpx

    token = os.environ.get("HF_TOKEN")
    if token and _is_of_hub(url):  # the client drops it where another host takes over
        headers = {**headers, "Authorization": f"Bearer {token}"}
    try:
        with _client(os.getpid()).stream("GET", url, headers=headers) as response:
            status = response.status_code
            if status in (401, 403) and _is_of_hub(str(response.url)):
                raise SourceError(f"{url} can't be read: its server answered {status}.", TOKEN_REMEDY)
            if status in LATER:
                raise Later(f"its server answered {status}", _seconds(response.headers.get("Retry-After", "")))
            if status not in (200, 206, 416):  # 416: an empty file has no first byte
                raise SourceError(
                    f"{url} can't be read: its server answered {status} {response.reason_phrase}.",
                    "Check the address, or remove it from the source.",
                )
            yield response
    except (httpx.TooManyRedirects, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise SourceError(f"{url} can't be read: {str(error).rstrip('.')}.", "Check the address.") from error
    except httpx.TransportError as error:
        raise Later(f"{type(error).__name__}: {error}", answered=False) from error


def _seconds(wait: str) -> float | None:
    """The seconds that a server asks to wait, which it may also say as a date."""
    if wait.isdecimal():
        return float(wait)
    try:
        return max(0.0, parsedate_to_datetime(wait).timestamp() - time.time())
    except ValueError:
        return None


def _is_of_hub(url: str) -> bool:
    return url.startswith(f"{hub()}/")


def _version(response: httpx.Response) -> str:
    """What the server calls the version of a file. The hub names the digest of a file when it refers to where that
    lies."""
    linked = (before.headers.get("X-Linked-Etag") for before in response.history)
    named = (response.headers.get("ETag"), response.headers.get("Last-Modified"))
    return next((each for each in (*linked, *named) if each), "")


def _look_by_http(url: str) -> Address:
    with _response(url, {"Range": "bytes=0-0"}) as response:
        fields = response.headers
        version = _version(response)
        if response.status_code == 200:
            stated = fields.get("Content-Length", "")
            if not stated.isdecimal():
                raise SourceError(f"{url} can't be read: its server doesn't say how long it is.", "Download it first.")
            return Address(url, int(stated), version, parts=False)
        part = RANGE.fullmatch(fields.get("Content-Range", ""))
        if not part:
            raise SourceError(f"{url} can't be read: its server doesn't say how long it is.", "Download it first.")
        return Address(url, int(part[2]), version)


def _receive_by_http(address: Address, start: int, end: int, data: bytearray) -> None:
    """Add the bytes from `start` to `end` to the data, as far as they come. Raises Later, SourceError."""
    with _response(address.url, {"Range": f"bytes={start}-{end - 1}"}) as response:
        _check_version(address, response)
        part = RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if response.status_code == 416:
            raise _changed(address)
        if response.status_code != 206 or not part or part[1] != str(start):
            raise Later("its server sent another part of it than was asked for")
        if int(part[2]) != address.size:
            raise _changed(address)
        for piece in response.iter_raw():
            data += piece[: end - start]
            start += len(piece)
            if start >= end:
                return
    raise Later("its server sent less than was asked for")


def _copy(address: Address, file: BinaryIO) -> None:
    """Receive the whole file, from its beginning. Raises Later, SourceError."""
    file.seek(0)
    file.truncate()
    with _response(address.url, {}) as response:
        _check_version(address, response)
        for piece in response.iter_raw():
            file.write(piece)
    if file.tell() != address.size:
        raise Later(f"its server sent {file.tell():,} of {address.size:,} bytes")


def _check_version(address: Address, response: httpx.Response) -> None:
    if _version(response) != address.version:
        raise _changed(address)


def _changed(address: Address) -> SourceError:
    return SourceError(f"{address.url} isn't the file that the run began with.", "Run again once nothing changes it.")


def _bucket(url: str) -> tuple[Any, str]:
    try:
        return opened(url, "The address", "Install fsspec's package for it, or give another address.")
    except StoreError as error:
        raise SourceError(f"{url} can't be read: {error.message}", "Install fsspec's package for it.") from error


def _in_bucket(request: Callable[[], T], url: str) -> T:
    """What a request to a bucket gives. Raises Later, SourceError."""
    try:
        return request()
    except unreachable() as error:
        if may_pass(error):
            raise Later(str(error) or type(error).__name__) from error
        raise SourceError(
            f"{url} can't be read: {str(error) or type(error).__name__}.",
            "Check the address, and the credentials in the environment.",
        ) from error


def _look_in_bucket(url: str) -> Address:
    fs, path = _bucket(url)
    found = _in_bucket(lambda: fs.info(path), url)
    states = (found.get(name) for name in ("ETag", "etag", "md5Hash", "LastModified", "mtime"))
    return Address(url, int(found["size"] or 0), str(next((state for state in states if state), "")))


def _receive_from_bucket(address: Address, start: int, end: int, data: bytearray) -> None:
    if _look_in_bucket(address.url) != address:
        raise _changed(address)
    fs, path = _bucket(address.url)
    data += _in_bucket(lambda: fs.cat_file(path, start=start, end=end), address.url)
