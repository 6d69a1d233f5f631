"""One HTTP exchange: the body within its bounds, the answer as it comes, and the end when the client leaves."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl

from tasks.serve.access import AccessRefused
from tasks.serve.api.errors import Refusal
from tasks.serve.api.stream import Form
from tasks.serve.ask import Ask, Client, Delta
from tasks.serve.config import RequestConfig
from tasks.serve.service import Answering, Service, refused_access

REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
Reader = Callable[[bytes], Ask]


class ClientGone(Exception):
    """The client closed the connection."""


class Exchange:
    """A request and its answer, as an ASGI application for one route."""

    def __init__(self, service: Service, read: Reader, form: type[Form], refused: Callable[[Refusal], Any]) -> None:
        self.service, self.read, self.form, self.refused = service, read, form, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. When the client leaves, the work is cancelled at once, and with it the request in the engine."""
        client, bounds, watch = client_of(scope), self.service.config.requests, self.service.watch
        headers = {name: scope_header(scope, name) for name in (b"traceparent", b"tracestate")}
        observed = watch.request(
            request_id=client.request_id,
            route=client.route,
            client=(scope.get("client") or ("",))[0],
            headers={name.decode(): value for name, value in headers.items() if value},
        )
        try:
            if watch.refusing:
                raise Refusal(503, "The audit log can't be written.", "audit_failing", retry_after=5.0)
            observed.names("", await identify(self.service, client))
            body = await body_of(Request(scope, receive), bounds)
            ask = await self.service.read(len(body), lambda: self.read(body))
            answering = self.service.open(ask, observed)
        except Refusal as refusal:
            observed.end(status=refusal.status, finish=None, reason=refusal.code)
            await send_json(send, refusal.status, self.refused(refusal), client, refusal)
            return
        except ClientGone:
            observed.end(status=499, finish=None, client_gone=True)
            return
        work = asyncio.create_task(self._work(answering, client, send, scope["state"]["flow"]))
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    async def _work(self, answering: Answering, client: Client, send: Send, flow: FlowControl) -> None:
        seconds = self.service.config.requests.total_seconds
        ask, served = answering.ask, answering.served
        form = self.form(ask, served.name, client.request_id, int(time.time()), served.digest)
        refusal: Refusal | None = None
        gone = True  # until the answer has ended in order
        try:
            async with asyncio.timeout(seconds):
                await self.service.begin(answering, client)
                if ask.stream:
                    await self._stream(answering, form, client, send, flow)
                else:
                    answers: list[list[Delta]] = [[] for _ in range(ask.answers)]
                    async for delta in answering.deltas():
                        answers[delta.answer].append(delta)
                    await send_json(send, 200, form.whole(answers, await answering.book()), client)
            gone = False
        except Refusal as caught:
            refusal, gone = caught, False
        except TimeoutError:
            refusal, gone = Refusal(504, f"The answer took longer than {seconds:g} s.", "timeout"), False
        except ClientGone:
            pass
        finally:
            await asyncio.shield(answering.close(refusal, gone=gone))
        if refusal is None:
            return
        if not answering.begun:
            await send_json(send, refusal.status, self.refused(refusal), client, refusal)
            return
        with contextlib.suppress(ClientGone):
            await send({"type": "http.response.body", "body": b"".join(form.fail(refusal))})

    async def _stream(self, answering: Answering, form: Form, client: Client, send: Send, flow: FlowControl) -> None:
        """Send the answer as events. Nothing is sent before the first token, so that a refusal keeps its status. What a
        client doesn't read yet waits here, so that the engine's slot is free once the answer is complete."""
        waiting: list[bytes] = []

        async def pass_on(*, more: bool) -> None:
            if not answering.begun:
                answering.begun = True
                headers = [*head(client), (b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"".join(waiting), "more_body": more})
            waiting.clear()

        first = True
        async for delta in answering.deltas():
            if first:
                waiting += form.begin(answering.usage)
                first = False
            waiting += form.add(delta)
            if not flow.write_paused:
                await pass_on(more=True)
        waiting += form.end(await answering.book())
        await pass_on(more=False)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def body_of(request: Request, bounds: RequestConfig) -> bytes:
    """The body. Raises Refusal if it is too large, too slow, encoded or not JSON by its type, and ClientGone."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "The Content-Type is not application/json.", "unsupported_media_type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "Encoded bodies are not supported.", "unsupported_media_type")
    parts, size = [], 0
    try:
        async with asyncio.timeout(bounds.read_seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                size += len(part)
                if size > bounds.max_bytes:
                    raise Refusal(413, f"The body has over {bounds.max_bytes:,} bytes.", "request_too_large")
                parts.append(part)
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        raise Refusal(408, f"The body took longer than {bounds.read_seconds:g} s.", "timeout") from None


async def identify(service: Service, client: Client) -> str:
    """The public id of the client's key. Raises Refusal."""
    try:
        return await service.access.identify(client.presented, local=client.local)
    except AccessRefused as error:
        raise refused_access(error) from error


def scope_header(scope: Scope, name: bytes) -> str:
    """A header of a request, empty if it is missing."""
    return next((value.decode("latin-1") for found, value in scope["headers"] if found == name), "")


def client_of(scope: Scope) -> Client:
    """Who asks: the key of the request, and whether it came from this machine and through no proxy."""
    request = Request(scope)
    bearer = request.headers.get("authorization", "")
    scheme, _, token = bearer.partition(" ")
    presented = token.strip() if scheme.lower() == "bearer" else bearer or None
    presented = presented or request.headers.get("x-api-key")
    forwarded = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "x-real-ip", "via"))
    asked = request.headers.get("x-request-id", "")
    request_id = asked if REQUEST_ID.fullmatch(asked) else secrets.token_hex(12)
    return Client(request_id, scope["path"], presented, is_loopback(scope) and not forwarded)


def is_loopback(scope: Scope) -> bool:
    """Whether the other end is this machine."""
    host = (scope.get("client") or ("",))[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def head(client: Client) -> list[tuple[bytes, bytes]]:
    """The headers of every answer."""
    return [(b"x-request-id", client.request_id.encode()), (b"x-content-type-options", b"nosniff")]


async def send_json(
    send: Callable[[Any], Awaitable[None]], status: int, body: Any, client: Client, refusal: Refusal | None = None
) -> None:
    """Send a whole answer as JSON."""
    data = orjson.dumps(body)
    headers = [*head(client), (b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    if refusal is not None and refusal.retry_after is not None:
        headers.append((b"retry-after", str(max(1, round(refusal.retry_after + 0.5))).encode()))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    with contextlib.suppress(OSError):
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})
