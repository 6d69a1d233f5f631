"""A failing bucket: errors of its client become StoreErrors, wherever the store makes a request.

The S3 client retries by itself, so an error here means that the bucket stays unreachable or refuses. It retries for up
to seven minutes if nothing answers, so a log line says what is being waited for.
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

# By module, to import no client that is not in use
CLIENT_ERRORS = {
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "aiohttp": ("ClientError",),
    "gcsfs.retry": ("HttpError",),
    "azure.core.exceptions": ("AzureError",),
}
# What arrived differs from what was sent: a part is missing, or the checksum differs
CHANGED_ON_THE_WAY = {
    "botocore.exceptions": ("FlexibleChecksumError", "IncompleteReadError", "ResponseStreamingError"),
    "aiohttp": ("ClientPayloadError",),
}
# A network or a server that is away for a while. A refusal would only repeat
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
SILENT_SECONDS = 15.0  # of one request, before a log line about it
ANSWERS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, FileExistsError)


def unreachable() -> tuple[type[BaseException], ...]:
    """The errors of an unreachable file system: OSError, and those of its client."""
    return (OSError, *_loaded(CLIENT_ERRORS))


def may_pass(error: BaseException | None) -> bool:
    """Whether an error came from a network or server that was away or busy, so that a retry may succeed."""
    seen = 0
    while error is not None and seen < LONGEST_CHAIN:
        status = _status(error)
        if isinstance(error, (ConnectionError, TimeoutError, socket.gaierror, *_loaded(AWAY))):
            return True
        if isinstance(status, int) and (status in BUSY or status >= SERVER_ERROR):
            return True
        error, seen = error.__cause__, seen + 1
    return False


def _status(error: BaseException) -> object:
    """The HTTP status of the answer behind an error of httpx, requests or botocore."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return getattr(response, "status_code", None)


def _loaded(errors: Mapping[str, Sequence[str]]) -> tuple[type[BaseException], ...]:
    kinds = [
        getattr(sys.modules[module], name, None)
        for module, names in errors.items()
        if module in sys.modules
        for name in names
    ]
    return tuple(kind for kind in kinds if kind)


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """Within the block, errors of a bucket's client become StoreErrors, except that something doesn't exist."""
    try:
        yield
    except ANSWERS:
        raise
    except _loaded(CHANGED_ON_THE_WAY) as error:
        raise DamagedArtifact(
            f"What {url} sent arrived damaged: {str(error).rstrip('.')}.",
            "Run again. If it recurs, `gristmill store verify` reports whether the store itself is damaged.",
        ) from error
    except unreachable() as error:
        raise StoreError(
            f"The store {url} can't be reached: {(str(error) or type(error).__name__).rstrip('.')}.",
            "Check its address, the network, and the credentials in the environment.",
        ) from error


def opened(url: str, what: str, instead: str) -> tuple[Any, str]:
    """The file system of a folder or URL, and the path in it. `what` names it in errors, `instead` is their remedy.

    Raises ConfigError for a URL with a password, StoreError if it can't be opened.
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
    """A block that makes one request to a bucket: log once if that takes long."""
    message = "Still waiting for the store %s to answer (%s)."
    notice = threading.Timer(SILENT_SECONDS, logging.getLogger(__name__).warning, (message, url, request))
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()


def pause(attempt: int) -> None:
    """Wait before retrying what failed `attempt` times. The random delay spreads clients that failed together."""
    time.sleep(random.uniform(0, 0.25 * 2**attempt))


class Remote:
    """An fsspec file system whose methods run within `reaching` and `telling`, and retry what arrives damaged."""

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
