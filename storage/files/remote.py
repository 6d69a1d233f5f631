"""A bucket that fails: its client's own errors become one sentence, wherever the store asks it for something.

The client behind S3 repeats a request by itself, so what arrives here is a bucket that stays away, or says no. It does
so for up to seven minutes where nothing answers, so that one who waits is told for what.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from storage.credentials import REMEDY, decoded, has_credentials
from storage.errors import ConfigError, DamagedArtifact, StoreError

# By module, so that no client is imported that is not in use
CLIENT_ERRORS = {
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "aiohttp": ("ClientError",),
    "gcsfs.retry": ("HttpError",),
    "azure.core.exceptions": ("AzureError",),
}
# What arrived is not what was sent: the rest is missing, or the checksum is another
CHANGED_ON_THE_WAY = {
    "botocore.exceptions": ("FlexibleChecksumError", "IncompleteReadError", "ResponseStreamingError"),
    "aiohttp": ("ClientPayloadError",),
}
# A network or a server that is away for a while; what a server refuses, it refuses again
AWAY = {
    "botocore.exceptions": ("ConnectionError", "HTTPClientError"),
    "aiohttp": ("ClientConnectionError",),
    "httpx": ("TransportError",),
    "requests": ("ConnectionError", "Timeout"),
    "azure.core.exceptions": ("ServiceRequestError", "ServiceResponseError"),
}
BUSY, SERVER_ERROR = (408, 429), 500
LONGEST_CHAIN = 10  # of causes
ATTEMPTS = 4  # to read what arrives damaged
SILENT_SECONDS = 15.0  # of one request, before a word is said of it
ANSWERS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, FileExistsError)


def unreachable() -> tuple[type[BaseException], ...]:
    """What a file system raises that can't be reached: OSError, and errors of the client that it was built on."""
    return (OSError, *_loaded(CLIENT_ERRORS))


def may_pass(error: BaseException | None) -> bool:
    """Whether an error came of a network or a server that was away or busy, so that later it may not come again."""
    seen = 0
    while error is not None and seen < LONGEST_CHAIN:
        answered = _status(error)
        if isinstance(error, (ConnectionError, TimeoutError, socket.gaierror, *_loaded(AWAY))):
            return True
        if isinstance(answered, int) and (answered in BUSY or answered >= SERVER_ERROR):
            return True
        error, seen = error.__cause__, seen + 1
    return False


def _status(error: BaseException) -> object:
    """What the server answered that an error is about, as httpx and requests keep it, or botocore."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return getattr(response, "status_code", None)


def _loaded(errors: Mapping[str, Sequence[str]]) -> tuple[type[BaseException], ...]:
    found = [
        getattr(sys.modules[module], name, None)
        for module, names in errors.items()
        if module in sys.modules
        for name in names
    ]
    return tuple(error for error in found if error)


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """Within the block, the errors of a bucket's client are StoreErrors; that something is not there is an answer."""
    try:
        yield
    except ANSWERS:
        raise
    except _loaded(CHANGED_ON_THE_WAY) as error:
        raise DamagedArtifact(
            f"What {url} sent arrived damaged: {str(error).rstrip('.')}.",
            "Run again; if it comes again, `gristmill store verify` says whether it is damaged there.",
        ) from error
    except unreachable() as error:
        raise StoreError(
            f"The store {url} can't be reached: {(str(error) or type(error).__name__).rstrip('.')}.",
            "Check its address, the network, and the credentials in the environment.",
        ) from error


def opened(url: str, what: str, instead: str) -> tuple[Any, str]:
    """The file system of a folder or URL, and the path in it. `what` it is and what to give `instead` are for errors.

    Raises ConfigError for a URL with a password, StoreError for one that can't be opened.
    """
    import fsspec

    if has_credentials(url):
        raise ConfigError(f"{what} {decoded(url)} holds a password or a token.", REMEDY)
    try:
        with reaching(url):
            fs, root = fsspec.core.url_to_fs(os.path.expanduser(url))
    except (ValueError, ImportError) as error:
        raise StoreError(f"{what} {url} can't be opened: {error}.", instead) from error
    return fs, str(root).rstrip("/")


@contextmanager
def telling(url: str, request: str) -> Iterator[None]:
    """A block that asks a bucket for one thing: it's said, once, if that takes long."""
    message = "Still waiting for the store %s to answer (%s)."
    notice = threading.Timer(SILENT_SECONDS, logging.getLogger(__name__).warning, (message, url, request))
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()


def pause(attempt: int) -> None:
    """Wait before what failed `attempt` times is tried again; clients that failed together do not meet again."""
    time.sleep(random.uniform(0, 0.25 * 2**attempt))


class Remote:
    """A file system of fsspec, each of whose methods is called within `reaching` and `telling`; what arrives damaged is
    asked for again."""

    def __init__(self, fs: Any, url: str) -> None:
        self._fs, self._url = fs, url

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._fs, name)
        return self._guarded(name, method) if callable(method) else method

    def _guarded(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            for attempt in range(1, ATTEMPTS):
                with suppress(DamagedArtifact), reaching(self._url), telling(self._url, name):
                    return method(*arguments, **options)
                pause(attempt)
            with reaching(self._url), telling(self._url, name):
                return method(*arguments, **options)

        return call
