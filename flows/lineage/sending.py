"""Sends events to a URL, in the order in which they came, and appends them to a file.

A catalogue never ends or holds up a run. Requests are made in a thread of their own, and an event that can't be sent is
dropped. At its end a run waits a few seconds for the rest. openlineage-python's `OpenLineageClient` is not used: it
takes settings from OPENLINEAGE_* and openlineage.yml over ours, and adds variables and the Git remote to events. Its
asynchronous transport follows redirects, which turns a POST into a GET that seems to succeed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from storage.credentials import redact
from storage.errors import ConfigError
from tasks.stage.runtime import OpenLineage

ANSWER_SECONDS = 5.0  # for one try of one event
RETRY = {  # once. Without Retry-After, by which a server could hold up the events behind for an hour
    "total": 1,
    "backoff_factor": 0.3,
    "status_forcelist": [429, 500, 502, 503, 504],
    "allowed_methods": ["POST"],
    "respect_retry_after_header": False,
}
END_SECONDS = 10.0  # that a run waits at its end for events under way
FAILING_SECONDS = 2.0  # if the last one could not be sent
SECTION = "runtime.tracking.openlineage"


def check(settings: OpenLineage) -> None:
    """Raises ConfigError if the client isn't installed, the key isn't set, or the file can't be written."""
    if find_spec("openlineage") is None:
        raise ConfigError(
            f"{SECTION} needs openlineage-python, which is not installed.",
            "Install the extra: pip install 'gristmill[openlineage]', or leave it out.",
        )
    key_of(settings)
    if settings.file is not None:
        path = Path(settings.file).expanduser()
        try:
            with path.open("ab"):
                pass
        except OSError as error:
            raise ConfigError(f"{SECTION}.file: {path} can't be written: {error.strerror}.", "Correct it.") from error


def key_of(settings: OpenLineage) -> str | None:
    """The key for the URL, from the environment. Raises ConfigError."""
    if settings.api_key_env is None:
        return None
    key = os.environ.get(settings.api_key_env, "").strip()
    if not re.fullmatch(r"[!-~]+", key):  # an error would quote an invalid header, the key
        state = "is not set" if not key else "has characters that a key can't have"
        raise ConfigError(
            f"{SECTION}.api_key_env: the environment variable {settings.api_key_env} {state}.",
            f"Set {settings.api_key_env} for this process.",
        )
    return key


class Sender:
    """Takes events. `problem` is the first reason why one could not be sent, as a sentence."""

    def __init__(self, settings: OpenLineage) -> None:
        self.problem, self.failing, self._finished = "", False, False
        self._file = settings.file and Path(settings.file).expanduser()
        self._events: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._address = "/".join(part.strip("/") for part in (settings.url or "", settings.endpoint))
        self._transport = _transport(settings) if settings.url else None
        # A daemon, as a catalogue that doesn't answer must not keep the process
        self._thread = threading.Thread(target=self._post_all, name="openlineage", daemon=True)
        if self._transport:
            self._thread.start()

    def send(self, event: Mapping[str, Any]) -> None:
        """Append an event to the file, and leave it to be sent to the URL."""
        if self._file:
            line = json.dumps(event, ensure_ascii=False, sort_keys=True) + "\n"
            try:
                with open(self._file, "ab", buffering=0) as file:
                    file.write(line.encode())  # at once, so that lines of two runs don't mix
            except OSError as error:
                self.problem = self.problem or f"{self._file} can't be written: {error.strerror}"
        if self._transport:
            self._events.put(dict(event))

    def close(self) -> None:
        """Wait until events are sent, for a few seconds at most."""
        if not self._transport:
            return
        self._events.put(None)
        deadline = time.monotonic() + END_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(FAILING_SECONDS)
            if self.failing:
                break
        if not self._finished:
            self.problem = self.problem or f"{self._address} did not take the last events in time"

    def _post_all(self) -> None:
        while (event := self._events.get()) is not None:
            problem = self._post(event)
            self.failing = bool(problem)
            if problem and not self.problem:
                self.problem = redact(f"{self._address} {problem}")
        self._finished = True

    def _post(self, event: dict[str, Any]) -> str:
        """Send an event. Returns why it failed, or nothing."""
        requests: Any = import_module("requests")
        assert self._transport is not None
        try:
            answer = self._transport.emit(event)
        except requests.TooManyRedirects:
            return "redirects, which would lose events: give the address that it redirects to"
        except requests.HTTPError as error:
            refusal = error.response
            return f"answered {refusal.status_code} {refusal.reason}" if refusal is not None else reason(error)
        except requests.Timeout:
            return f"did not answer in {ANSWER_SECONDS:.0f} seconds"
        except requests.RequestException as error:
            return reason(error)
        kind = answer.headers.get("content-type", "")
        return "answered with a page, so it is no catalogue" if kind.startswith("text/html") else ""


def reason(error: Exception) -> str:
    """What a failed request says, without the objects that requests and urllib3 quote in it."""
    text = str(error)
    for part, said in (
        ("too many", "answered with errors (429 or 5xx)"),
        ("timed out", "did not answer in time"),
        ("refused", "refused the connection"),
        ("resolve", "has an unknown host"),
        ("CERTIFICATE", "has a certificate that is not trusted"),
    ):
        if part in text:
            return said
    return "broke the connection, or gave no HTTP answer"


def _transport(settings: OpenLineage) -> Any:
    """The client's transport, with a session that neither follows redirects nor takes another key from .netrc."""
    client: Any = import_module("openlineage.client.transport.http")
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # it prints each repetition
    session, key = import_module("requests").Session(), key_of(settings)
    session.max_redirects = 0
    auth = {}
    if key:
        session.auth = lambda request: request
        auth = {"auth": client.ApiKeyTokenProvider({"api_key": key})}
    config = client.HttpConfig(
        url=f"{(settings.url or '').rstrip('/')}/",  # else joining would drop the end of its path
        endpoint=settings.endpoint.lstrip("/"),
        timeout=ANSWER_SECONDS,
        session=session,
        retry=RETRY,
        **auth,
    )
    return client.HttpTransport(config)
