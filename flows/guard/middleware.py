"""The check that every request to a Prefect server of ours passes before any route or websocket.

A browser sends requests for any page it shows, to 127.0.0.1 too, and CORS only keeps a page of another site from
reading the answer. So a request must

- name this server as its Host: with another name, made to lead here (DNS rebinding), a foreign page would be
  same-origin;
- come from a page of this server or from none, by its Origin and Sec-Fetch-Site, unless somebody follows a link,
- have the password, in a header that no page can make the browser send, or in a websocket's first message,
- not make a worker start another command than the flow's.

Pages may load nothing from elsewhere, and may not be framed.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NamedTuple

from flows.guard.job_variables import refused
from flows.guard.sign_in import PATHS, POLICY

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# This machine's names, with any port: a port that is forwarded to here may differ
OWN_NAME = re.compile(r"(?:127\.0\.0\.1|localhost)(?::(\d{1,5}))?")
API = "/api"
READS = ("GET", "HEAD")
MOST_OF_CODE = 1000  # bytes of a body without the password
PATIENCE_SECONDS = 10.0  # for the first message of a websocket
# Prefect's pages set styles by script, start workers from blobs, and embed plots as data
PREFECT_PAGES = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "worker-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-src 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    b"content-security-policy": PREFECT_PAGES.encode(),
    b"x-frame-options": b"DENY",
    b"x-content-type-options": b"nosniff",
    b"x-dns-prefetch-control": b"off",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}


class Refusal(NamedTuple):
    """An answer in place of the server's."""

    status: int
    why: str


class Guard:
    """An ASGI application that passes permitted requests on to `app`. `password` is Prefect's auth string,
    `name:password`.

    A browser that is not signed in gets the page `sign_in`, if any, and exchanges `code` for the password once.
    """

    def __init__(self, app: App, password: str, sign_in: str | None = None, code: str | None = None) -> None:
        self._app, self._password, self._sign_in, self._code = app, password, sign_in, code
        self._authorization = b"Basic " + base64.b64encode(password.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on (ASGI)."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        answer = _with_headers(send)
        refusal = self._refusal(scope)
        if refusal is None and scope["type"] == "http":
            if self._sign_in is not None and _is_to_sign_in(scope):
                await _answer(answer, 200, self._sign_in, b"text/html; charset=utf-8", POLICY)
                return
            if _is_code(scope):
                await self._exchange((await _read(receive, MOST_OF_CODE))[1], answer)
                return
            if scope["method"] not in READS:
                receive, body = await _read(receive)
                refusal = _refusal_of_body(body)
        if refusal is None and scope["type"] == "websocket":
            await self._speak(scope, receive, send)
        elif refusal is None:
            await self._app(scope, receive, answer)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.why})
        else:
            said = json.dumps({"exception_message": refusal.why, "detail": refusal.why})
            await _answer(answer, refusal.status, said, b"application/json")

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers = _Headers(scope["headers"])
        if not OWN_NAME.fullmatch(headers.only(b"host") or ""):
            return Refusal(421, "This server has another name: 127.0.0.1.")
        if headers.has(b"origin") and headers.only(b"origin") != f"http://{headers.only(b'host')}":
            return Refusal(403, "This comes from a page of another site.")
        foreign = headers.has(b"sec-fetch-site") and headers.only(b"sec-fetch-site") not in ("same-origin", "none")
        if foreign and not _is_link(scope, headers):
            return Refusal(403, "This comes from a page of another site.")
        if scope["type"] == "http" and not _is_public(scope) and not _is_code(scope):
            given = (headers.only(b"authorization") or "").encode("latin-1")
            if not hmac.compare_digest(given, self._authorization):
                return Refusal(401, "The password of this server is missing: gristmill ui says where it is.")
        return None

    async def _speak(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a websocket on once its first message has the password, as in Prefect. An unauthorised one would occupy
        one of the few requests that Prefect handles at once, and Prefect fails on malformed messages."""
        if "prefect" not in scope.get("subprotocols", ()):
            await send({"type": "websocket.close", "code": 1002})
            return
        begun = [await receive()]
        await send({"type": "websocket.accept", "subprotocol": "prefect"})
        try:
            begun.append(first := await asyncio.wait_for(receive(), PATIENCE_SECONDS))
        except TimeoutError:
            await send({"type": "websocket.close", "code": 1008})
            return
        if first["type"] != "websocket.receive":
            return
        if not _has(self._password, first.get("text")):
            await send({"type": "websocket.close", "code": 1008, "reason": "The password is missing."})
            return

        async def replay() -> Message:
            return begun.pop(0) if begun else await receive()

        async def send_after_accept(message: Message) -> None:
            if message["type"] != "websocket.accept":  # it is accepted already
                await send(message)

        await self._app(scope, replay, send_after_accept)

    async def _exchange(self, code: bytes, answer: Send) -> None:
        """Answer the code with the password, once."""
        if self._code is None or not hmac.compare_digest(code, self._code.encode()):
            await _answer(answer, 403, json.dumps({"detail": "The code is wrong or used."}), b"application/json")
            return
        self._code = None
        known = self._authorization.removeprefix(b"Basic ").decode()
        await _answer(answer, 200, json.dumps({"password": known}), b"application/json")


def _is_public(scope: Scope) -> bool:
    """Whether it requests Prefect's pages, which are the same everywhere: they get their content from the API."""
    path = scope["path"]
    return scope["method"] in READS and path != API and not path.startswith(f"{API}/")


def _is_link(scope: Scope, headers: _Headers) -> bool:
    """Whether somebody follows a link of another site to a page, such as a run's in a message."""
    fetched = headers.only(b"sec-fetch-mode"), headers.only(b"sec-fetch-dest")
    return scope["type"] == "http" and _is_public(scope) and fetched == ("navigate", "document")


def _is_to_sign_in(scope: Scope) -> bool:
    """Whether a browser that is not signed in requests a page."""
    headers = _Headers(scope["headers"])
    if not _is_public(scope) or "text/html" not in (headers.only(b"accept") or ""):
        return False
    named = OWN_NAME.fullmatch(headers.only(b"host") or "")
    cookie = f"gristmill-{(named and named[1]) or ''}="
    return scope["path"] in PATHS or cookie not in (headers.only(b"cookie") or "")


def _is_code(scope: Scope) -> bool:
    """Whether the sign-in page requests the password. Its Origin, checked to be this server's, shows that it is a
    page."""
    return scope["path"] == PATHS[0] and scope["method"] == "POST" and _Headers(scope["headers"]).has(b"origin")


def _refusal_of_body(body: bytes) -> Refusal | None:
    """The refusal of a body, read as Prefect reads it, whatever its declared type."""
    try:
        why = refused(json.loads(body)) if body else None
    except RecursionError:
        return Refusal(422, "The body is nested too deep.")
    except ValueError:  # not JSON, or not in its encoding: Prefect can't read it either
        return None
    return Refusal(403, why) if why else None


class _Headers:
    """The headers of a request."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._raw = [(name.lower(), value) for name, value in raw]

    def has(self, name: bytes) -> bool:
        """Whether the header is there, once or more."""
        return any(each == name for each, _ in self._raw)

    def only(self, name: bytes) -> str | None:
        """The header's value, if it is there exactly once."""
        values = [value for each, value in self._raw if each == name]
        return values[0].decode("latin-1") if len(values) == 1 else None


def _has(password: str, text: str | None) -> bool:
    try:
        message = json.loads(text or "")
    except (ValueError, RecursionError):
        return False
    token = message.get("token") if isinstance(message, dict) and message.get("type") == "auth" else None
    return isinstance(token, str) and hmac.compare_digest(token.encode("utf-8", "surrogatepass"), password.encode())


async def _read(receive: Receive, most: float = math.inf) -> tuple[Receive, bytes]:
    """The body of a request, and a function that replays the request. Stops reading after `most` bytes."""
    messages: list[Message] = []
    size = 0
    while size <= most:
        messages.append(message := await receive())
        size += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            break
    body = b"".join(message.get("body", b"") for message in messages)

    async def replay() -> Message:
        return messages.pop(0) if messages else await receive()

    return replay, body


def _with_headers(send: Send) -> Send:
    """A `send` that adds our headers to every answer, but keeps those that it has."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", ())}
            more = [(name, value) for name, value in HEADERS.items() if name not in present]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await send(message)

    return send_with_headers


async def _answer(send: Send, status: int, text: str, kind: bytes, policy: str = "default-src 'none'") -> None:
    headers = [
        (b"content-type", kind),
        (b"content-length", str(len(content := text.encode())).encode()),
        (b"content-security-policy", policy.encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
