"""Sends requests to one address of an endpoint, and keeps what it answers.

Passing failures are retried, with twice the pause each time: 408, 429, 5xx, a failed connection, an answer that is late
or not of the form that was asked for. Anything else ends the stage at once. The key leaves this process only in one
header. Redirects are not followed.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import httpx

from storage.credentials import HIDDEN
from storage.errors import GristmillError, SourceError
from tasks.endpoint.paid import PaidAnswers
from tasks.stage.runtime import EndpointRuntime

SECRET_LETTERS = 8  # from this length on, a key is struck out of answers
MOST_BYTES = 8_000_000  # of an answer
LONGEST_PAUSE = 120.0  # seconds, whatever the server asks for
WAIT_SECONDS = 1.0  # between two reports that an answer isn't there yet
AHEAD = 8  # requests of a stream, for each one at a time, that may be sent before the first of them is answered
PASSING = {408, 429, *range(500, 600)}
REFUSED = {400, 413, 422}
Kept = dict[str, Any]  # what is kept of an answer
K = TypeVar("K")
A = TypeVar("A")


class _Passing(Exception):
    """A failure that may pass. `pause` is the number of seconds that the server asks to wait."""

    def __init__(self, what: str, pause: float = 0.0) -> None:
        super().__init__(what)
        self.pause = pause


class Sender:
    """Sends requests, several at once, to the endpoint in this `section` of the profile. Those that `paid` has an
    answer to are not sent again."""

    drops_refused = True  # whether a request that the server refuses for its content (too long, against its rules) is
    # answered by None. Otherwise it ends the stage
    most_bytes = MOST_BYTES
    remedy = "its url, its model and the key"

    def __init__(
        self, address: httpx.URL, key: str | None, section: str, runtime: EndpointRuntime, paid: PaidAnswers
    ) -> None:
        self.address, self.section, self.runtime, self.paid = address, section, runtime, paid
        self.host = address.host
        self.repeated = 0
        self.problem = ""  # of the last request, if it is to be repeated
        self._key = key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=runtime.concurrent_requests)
        self._client = httpx.Client(headers=headers, timeout=runtime.timeout_seconds, limits=limits)
        self._stopped = threading.Event()
        self._failure: GristmillError | None = None  # that ended all requests

    def kept(
        self, request: str, body: Mapping[str, Any], read: Callable[[bytes], Kept], about: str = ""
    ) -> Kept | None:
        """The answer that is kept under the digest of a request, or else the server's, which then is. `read` makes it
        of the bytes of an answer with status 200, and raises SourceError for other content. `about` says what is asked
        about, for an error."""
        answer = self.paid.get(request)
        if answer is None:
            try:
                answer = self._with_retries(body, read, about)
            except GristmillError as error:
                self._failure = self._failure or error
                self._stopped.set()
                raise
            if answer is not None:
                self.paid.keep(request, answer)
        return answer

    def in_order(
        self, requests: Iterable[tuple[K, Callable[[], A]]], on_wait: Callable[[], None]
    ) -> Generator[tuple[K, A], None, None]:
        """Each request with what its call gives, in order and as they come. While the next one doesn't, calls
        `on_wait`. When it ends early, no further request is sent, and pending answers are awaited and kept."""
        waiting: deque[tuple[K, Future[A]]] = deque()
        with ThreadPoolExecutor(self.runtime.concurrent_requests) as pool:
            try:
                for one, call in requests:
                    waiting.append((one, pool.submit(call)))
                    if len(waiting) == AHEAD * self.runtime.concurrent_requests:
                        yield _next(waiting, on_wait)
                while waiting:
                    yield _next(waiting, on_wait)
            finally:
                if waiting:
                    self._stopped.set()
                    pool.shutdown(wait=False, cancel_futures=True)

    def _with_retries(self, body: Mapping[str, Any], read: Callable[[bytes], Kept], about: str) -> Kept | None:
        """The answer, or None if the server refuses this request or nobody waits for it. Raises SourceError when all
        retries have failed, here or of another request."""
        problem, pause = "", 0.0
        for attempt in range(self.runtime.retries + 1):
            if self._stopped.wait(pause):
                if self._failure:
                    raise self._failure
                return None
            try:
                answer = self._send(body, read, about)
                self.problem = ""
                return answer
            except _Passing as error:
                problem, asked_for = str(error), error.pause
            except httpx.RequestError as error:
                problem, asked_for = type(error).__name__, 0.0
            self.problem = problem
            self.repeated += attempt < self.runtime.retries
            pause = min(max(asked_for, self.runtime.backoff_seconds * 2**attempt), LONGEST_PAUSE)
        raise SourceError(
            f"The endpoint {self.host} failed {self.runtime.retries + 1} times: {problem}.",
            "Answers so far are kept: run again when it works, and lower runtime.endpoint.concurrent_requests if it "
            f"answers 429.{about}",
        )

    def _send(self, body: Mapping[str, Any], read: Callable[[bytes], Kept], about: str) -> Kept | None:
        with self._client.stream("POST", self.address, json=body) as response:
            content, status = self._content(response), response.status_code
            pause = _seconds(response.headers.get("retry-after", ""))
        if status in PASSING:
            raise _Passing(f"it answered {status}{self._quoted(content)}", pause)
        if status in REFUSED and self.drops_refused:
            return None
        if status != 200:
            raise SourceError(
                f"The endpoint {self.host} answered {status}{self._quoted(content)}.",
                f"Check {self.section}: {self.remedy}.{about if status in REFUSED else ''}",
            )
        try:
            return read(content)
        except SourceError as error:
            what = error.message.rstrip(".")
            raise _Passing(f"{what[:1].lower()}{what[1:]}{self._quoted(content)}") from error

    def _content(self, response: httpx.Response) -> bytes:
        """The body of a response. Raises _Passing if it exceeds the limits of size or time."""
        content, ends = bytearray(), time.monotonic() + self.runtime.timeout_seconds
        for part in response.iter_bytes():
            content += part
            if len(content) > self.most_bytes:
                raise _Passing(f"an answer of more than {self.most_bytes:,} bytes")
            if time.monotonic() > ends:
                raise _Passing(f"an answer that took more than {self.runtime.timeout_seconds:g} seconds")
        return bytes(content)

    def _quoted(self, content: bytes) -> str:
        """The beginning of a response, for an error."""
        words = " ".join(re.sub(r"[^ -~]+", " ", content[:1000].decode(errors="replace")).split())
        return f": {self.without_key(words)[:200]}" if words else ""

    def without_key(self, text: str) -> str:
        """The text with the key struck out. Short keys, such as local servers accept, may be words of any answer and
        stay."""
        return text.replace(self._key, HIDDEN) if self._key and len(self._key) >= SECRET_LETTERS else text


def _next(waiting: deque[tuple[K, Future[A]]], on_wait: Callable[[], None]) -> tuple[K, A]:
    """The first request and its answer, once that is there."""
    while not wait([waiting[0][1]], WAIT_SECONDS).done:
        on_wait()
    request, answer = waiting[0]
    found = answer.result()
    waiting.popleft()
    return request, found


def _seconds(retry_after: str) -> float:
    """The seconds of a Retry-After header, or 0 for a date, which is rare."""
    return float(retry_after) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", retry_after) else 0.0
