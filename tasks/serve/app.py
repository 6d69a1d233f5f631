"""The routes of the server, behind checks that hold for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tasks.serve.api import chat, completions, messages
from tasks.serve.api.chat import ChatForm
from tasks.serve.api.completions import CompletionForm
from tasks.serve.api.errors import Refusal, unfit
from tasks.serve.api.fields import Fields, parse, text_of
from tasks.serve.api.messages import MessageForm
from tasks.serve.api.openapi import document
from tasks.serve.exchange import ClientGone, Exchange, body_of, client_of, identify, scope_header, send_json
from tasks.serve.pages.feedback import Feedback
from tasks.serve.pages.files import page_files
from tasks.serve.served import Served
from tasks.serve.service import Service

MOST_INPUTS = 64  # texts of a request for embeddings
Answer = Callable[[Request], Awaitable[Any]]


def build(service: Service, feedback: Feedback) -> ASGIApp:
    """The application. `feedback` keeps the votes of the chat page."""
    bounds = service.config.requests

    def chat_ask(body: bytes) -> Any:
        return chat.read(parse(body), most_messages=bounds.max_messages, most_answers=bounds.max_choices)

    def completion_ask(body: bytes) -> Any:
        return completions.read(parse(body), most_answers=bounds.max_choices)

    def message_ask(body: bytes) -> Any:
        return messages.read(parse(body), most_messages=bounds.max_messages)

    exchanges = {
        "/v1/chat/completions": Exchange(service, chat_ask, ChatForm, Refusal.openai),
        "/v1/completions": Exchange(service, completion_ask, CompletionForm, Refusal.openai),
        "/v1/messages": Exchange(service, message_ask, MessageForm, Refusal.anthropic),
    }
    routes = [
        *(Route(path, _Methods({"POST": exchange})) for path, exchange in exchanges.items()),
        Route(
            "/v1/messages/count_tokens",
            _Methods({"POST": _Json(service, lambda request: _counted(service, request), Refusal.anthropic)}),
        ),
        Route("/v1/embeddings", _Methods({"POST": _Json(service, lambda request: _embeddings(service, request))})),
        Route("/v1/models", _Methods({"GET": _Json(service, lambda request: _models(service))})),
        Route("/v1/models/{name:path}", _Methods({"GET": _Json(service, lambda request: _model(service, request))})),
        Route("/openapi.json", _Methods({"GET": _Json(service, lambda request: _document(service))})),
        Route("/health", _Methods({"GET": _Open(_health)})),
        Route("/ready", _Methods({"GET": _Open(lambda: _ready(service))})),
        Route("/metrics", _Methods({"GET": _Json(service, lambda request: _metrics(service), watching=True)})),
        Route("/status.json", _Methods({"GET": _Json(service, lambda request: _status(service), watching=True)})),
        *(Route(path, _Methods({"GET": page})) for path, page in _pages(service.config.page).items()),
        Route("/feedback", _Methods({"POST": _Json(service, lambda request: _vote(service, feedback, request))})),
    ]
    app = Starlette(routes=routes)
    app.router.default, app.router.redirect_slashes = _missing, False
    return _Gate(app, service)


class _Gate:
    """Refuses requests that a page of another origin could make a browser send. Host guards against rebinding of a
    name, Origin against requests across sites: CORS only hinders reading the answer."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._config = app, service.config
        self._names = {
            "localhost",
            "127.0.0.1",
            "[::1]",
            self._config.host.lower(),
            *map(str.lower, self._config.hosts),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        host = request.headers.get("host", "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        origin = request.headers.get("origin")
        allowed = origin is not None and origin in self._config.origins
        refusal = None
        if self._config.host not in ("0.0.0.0", "::") and name not in self._names:
            refusal = Refusal(421, f"This server isn't {host[:100]!r}. Add the name to `hosts` of its settings.")
        elif origin is not None and not allowed and origin.partition("://")[2].lower() != host:
            refusal = Refusal(403, f"Pages of {origin[:100]!r} may not call this server.", "origin_not_allowed")
        if refusal is not None:
            await _refuse(scope, send, refusal)
            return
        if not allowed:
            await self._app(scope, receive, send)
            return
        assert origin is not None
        cors = [(b"access-control-allow-origin", origin.encode()), (b"vary", b"origin")]
        if request.method == "OPTIONS":
            methods = (b"access-control-allow-methods", b"GET, POST")
            names = (b"access-control-allow-headers", b"authorization, content-type, x-api-key")
            await send({"type": "http.response.start", "status": 204, "headers": [*cors, methods, names]})
            await send({"type": "http.response.body", "body": b""})
            return

        async def with_cors(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *cors]}
            await send(message)

        await self._app(scope, receive, with_cors)


class _Methods:
    """An application for each method of a path."""

    def __init__(self, apps: Mapping[str, ASGIApp]) -> None:
        self._apps = apps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if app := self._apps.get(method):
            await app(scope, receive, send)
            return
        await _refuse(
            scope, send, Refusal(405, f"{scope['path']} takes {' and '.join(self._apps)}.", "method_not_allowed")
        )


class _Json:
    """An answer for clients with a key, or from this machine. `watching`: of all keys only for those that may watch."""

    def __init__(
        self,
        service: Service,
        answer: Answer,
        refused: Callable[[Refusal], Any] = Refusal.openai,
        *,
        watching: bool = False,
    ) -> None:
        self._service, self._answer, self._refused, self._watching = service, answer, refused, watching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client, request = client_of(scope), Request(scope, receive)
        try:
            key = await identify(self._service, client)
            if self._watching and not client.local and key not in self._service.config.watchers:
                raise Refusal(403, "This key may not see the figures of the server.", "not_a_watcher")
            answer = await self._answer(request)
        except Refusal as refusal:
            await send_json(send, refusal.status, self._refused(refusal), client, refusal)
            return
        except ClientGone:
            return
        if isinstance(answer, Response):
            await answer(scope, receive, send)
        else:
            await send_json(send, 200, answer, client)


class _Open:
    """An answer for everybody."""

    def __init__(self, answer: Callable[[], Awaitable[Response]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer()
        await response(scope, receive, send)


def _pages(chat: bool) -> dict[str, ASGIApp]:
    """The pages and their files by route. Without `chat`, only those of the status page."""
    files = page_files()
    return {
        route: Response(file.content, headers=dict(file.headers))
        for route, file in files.items()
        if chat or route not in ("/", "/pages/chat.js")
    }


async def _vote(service: Service, feedback: Feedback, request: Request) -> Response:
    payload = parse(await body_of(request, service.config.requests))
    answered = service.answered.get(str(payload.get("request_id")))
    if answered is None:
        raise Refusal(404, "This server hasn't answered such a request lately.", "not_found", "request_id")
    key, digest = answered
    try:
        await asyncio.to_thread(feedback.add, payload, key, digest)
    except ValueError as error:
        raise unfit(str(error)) from error
    except OSError as error:
        raise Refusal(503, "The vote can't be written.", "feedback_failing", retry_after=5.0) from error
    return Response(status_code=204)


async def _missing(scope: Scope, receive: Receive, send: Send) -> None:
    path = scope["path"][:100]
    shown = path if path.isprintable() else repr(path)
    await _refuse(scope, send, Refusal(404, f"{shown} is not a path of this server.", "not_found"))


async def _refuse(scope: Scope, send: Send, refusal: Refusal) -> None:
    """Refuse a request that reached no route, in the form that its client reads."""
    body = refusal.anthropic() if scope_header(scope, b"anthropic-version") else refusal.openai()
    await send_json(send, refusal.status, body, client_of(scope))


async def _ready(service: Service) -> Response:
    found = {name: (await served.health.check()).as_json() for name, served in service.models.items()}
    ready = bool(found) and all(each["ready"] for each in found.values())
    body = orjson.dumps({"ready": ready, "models": found})
    return Response(body, 200 if ready else 503, None if ready else {"retry-after": "2"}, "application/json")


async def _health() -> Response:
    return Response("ok\n", media_type="text/plain")


async def _metrics(service: Service) -> Response:
    service.gauge()
    return Response(service.watch.metrics_page(), media_type=CONTENT_TYPE_LATEST)


async def _status(service: Service) -> Any:
    return await service.status()


async def _document(service: Service) -> Any:
    return document(service.config.requests)


async def _models(service: Service) -> Any:
    return {"object": "list", "data": [_row(served) for served in service.models.values()]}


async def _model(service: Service, request: Request) -> Any:
    served = service.find(request.path_params["name"])
    return {**_row(served), **served.release.describe(), "engine": served.engine.name, "format": served.format}


def _row(served: Served) -> dict[str, Any]:
    proof = None if served.proof is None else asdict(served.proof)
    row = {"id": served.name, "object": "model", "created": served.created, "owned_by": "gristmill"}
    return {**row, "digest": served.digest, "context": served.context, "ready": served.ready, "proof": proof}


async def _counted(service: Service, request: Request) -> Any:
    """The tokens of a prompt, as Anthropic's API counts them: the request lacks max_tokens."""
    bounds, client = service.config.requests, client_of(request.scope)
    body = {"max_tokens": 1, **parse(await body_of(request, bounds))}
    ask = messages.read(body, most_messages=bounds.max_messages)
    return {"input_tokens": await service.prompt_tokens(ask, client)}


async def _embeddings(service: Service, request: Request) -> Any:
    fields = Fields(parse(await body_of(request, service.config.requests)))
    served = service.find(fields.text("model", "") or "")
    if "embeddings" not in served.engine.features:
        raise unfit(f"{served.engine.name} gives no embeddings of {served.name}.", "model", "unsupported")
    value = fields.raw("input")
    if fields.text("encoding_format", "float") != "float":
        raise unfit("encoding_format is not float, the only one that is supported.", "encoding_format")
    fields.end()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not 0 < len(texts) <= MOST_INPUTS:
        raise unfit(f"input is neither a text nor a list of up to {MOST_INPUTS} texts.", "input")
    return await service.embed(served, client_of(request.scope), [text_of(text, "input") for text in texts])
