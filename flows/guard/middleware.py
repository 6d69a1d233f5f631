"""What every request to a Prefect server of ours must pass before any of its routes, its websockets' too.

A browser sends requests for whatever page it shows, to 127.0.0.1 as well, and CORS hinders a page of another site only
in reading the answer. So a request

- names this server as its Host: another name, made to lead here (DNS rebinding), would make the page one of ours;
- comes from a page of this server or from none, by its Origin and Sec-Fetch-Site, but for a link that somebody follows;
- has the password, in a header that no page can have the browser send by itself, or in a websocket's first message;
- does not have a worker start another command than the flow's.

What is shown may load nothing from elsewhere, and be shown in no frame.
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

# Of this machine, by any port: one that is forwarded to here may have another
OWN_NAME = re.compile(r"(?:127\.0\.0\.1|localhost)(?::(\d{1,5}))?")
API = "/api"
READS = ("GET", "HEAD")
MOST_OF_CODE = 1000  # bytes that somebody without the password may send
PATIENCE_SECONDS = 10.0  # for the first message of a websocket
# Prefect's pages set styles by script, make workers of blobs, and have plots as data
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
    """An answer instead of that of the server."""

    status: int
    why: str


class Guard:
    """An ASGI application that lets to `app` what may pass. `password` is Prefect's auth string, `name:password`.

    A browser that is not signed in is shown the page `sign_in`, if there is one; by `code` it gets the password once.
    """

    def __init__(self, app: App, password: str, sign_in: str | None = None, code: str | None = None) -> None:
        self._app, self._password, self._sign_in, self._code = app, password, sign_in, code
        self._authorization = b"Basic " + base64.b64encode(password.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
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
        """Let a websocket to the server once its first message has the password, as Prefect has it. Before, it would
        take one of the few places of requests that Prefect works on at once; and Prefect fails by odd messages."""
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

        async def again() -> Message:
            return begun.pop(0) if begun else await receive()

        async def further(message: Message) -> None:
            if message["type"] != "websocket.accept":  # it is accepted already
                await send(message)

        await self._app(scope, again, further)

    async def _exchange(self, code: bytes, answer: Send) -> None:
        """Give the password for the code, the first time."""
        if self._code is None or not hmac.compare_digest(code, self._code.encode()):
            await _answer(answer, 403, json.dumps({"detail": "The code is of no use."}), b"application/json")
            return
        self._code = None
        known = self._authorization.removeprefix(b"Basic ").decode()
        await _answer(answer, 200, json.dumps({"password": known}), b"application/json")


def _is_public(scope: Scope) -> bool:
    """Whether it asks for Prefect's pages, which are the same everywhere: what they show they ask the API for."""
    path = scope["path"]
    return scope["method"] in READS and path != API and not path.startswith(f"{API}/")


def _is_link(scope: Scope, headers: _Headers) -> bool:
    """Whether somebody follows a link of another site to a page, such as that of a run in a message."""
    fetched = headers.only(b"sec-fetch-mode"), headers.only(b"sec-fetch-dest")
    return scope["type"] == "http" and _is_public(scope) and fetched == ("navigate", "document")


def _is_to_sign_in(scope: Scope) -> bool:
    """Whether a browser that is not signed in asks for a page."""
    headers = _Headers(scope["headers"])
    if not _is_public(scope) or "text/html" not in (headers.only(b"accept") or ""):
        return False
    named = OWN_NAME.fullmatch(headers.only(b"host") or "")
    cookie = f"gristmill-{(named and named[1]) or ''}="
    return scope["path"] in PATHS or cookie not in (headers.only(b"cookie") or "")


def _is_code(scope: Scope) -> bool:
    """Whether the page that signs in asks for the password: a page, by its Origin, which is this server's."""
    return scope["path"] == PATHS[0] and scope["method"] == "POST" and _Headers(scope["headers"]).has(b"origin")


def _refusal_of_body(body: bytes) -> Refusal | None:
    """Read as Prefect reads it, whatever type it says to be of."""
    try:
        why = refused(json.loads(body)) if body else None
    except RecursionError:
        return Refusal(422, "This is nested too deep.")
    except ValueError:  # it is no JSON, or of no encoding: Prefect can't read it either
        return None
    return Refusal(403, why) if why else None


class _Headers:
    """Those of a request."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._raw = [(name.lower(), value) for name, value in raw]

    def has(self, name: bytes) -> bool:
        """Whether it is there, once or more."""
        return any(each == name for each, _ in self._raw)

    def only(self, name: bytes) -> str | None:
        """Its value, if it is there once."""
        values = [value for each, value in self._raw if each == name]
        return values[0].decode("latin-1") if len(values) == 1 else None


def _has(password: str, text: str | None) -> bool:
    try:
        said = json.loads(text or "")
    except (ValueError, RecursionError):
        return False
    token = said.get("token") if isinstance(said, dict) and said.get("type") == "auth" else None
    return isinstance(token, str) and hmac.compare_digest(token.encode("utf-8", "surrogatepass"), password.encode())


async def _read(receive: Receive, most: float = math.inf) -> tuple[Receive, bytes]:
    """The body of a request, and what gives the request again. Of one above `most` bytes no more is read."""
    messages: list[Message] = []
    size = 0
    while size <= most:
        messages.append(message := await receive())
        size += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            break
    body = b"".join(message.get("body", b"") for message in messages)

    async def again() -> Message:
        return messages.pop(0) if messages else await receive()

    return again, body


def _with_headers(send: Send) -> Send:
    """Answers with the headers of all answers; one that is there already stays."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message.get("headers", ())}
            more = [(name, value) for name, value in HEADERS.items() if name not in there]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await send(message)

    return sending


async def _answer(send: Send, status: int, text: str, kind: bytes, policy: str = "default-src 'none'") -> None:
    headers = [
        (b"content-type", kind),
        (b"content-length", str(len(content := text.encode())).encode()),
        (b"content-security-policy", policy.encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
