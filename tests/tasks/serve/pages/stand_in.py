"""A server with the routes that the pages ask, whose answers are scripted: the words of the question choose one.

Bytes are sent in small pieces that split characters and line ends, as a network may.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tasks.serve.pages import Feedback, page_files

HOSTILE = """# <script>window.broken = 1</script>

<img src=x onerror="window.broken = 2"> <svg onload="window.broken = 3"> <iframe src="https://evil.example/frame">

[run](javascript:window.broken=4) [data](data:text/html,<script>window.broken=5</script>) [vb](vbscript:x)
[case](JaVaScRiPt:window.broken=6) [tab](java\tscript:window.broken=7) [good](https://evil.example/page)

![picture](https://evil.example/pixel.png) ![](https://evil.example/other.png)

| <b>a</b> | b |
|---|---|
| <img src=https://evil.example/cell.png> | `<script>window.broken = 8</script>` |

```html" onclick="window.broken = 9"
<script>window.broken = 10</script>
```

<style>body { background: url(https://evil.example/style.png) }</style>
"""
MARKDOWN = """A river is **water that flows** from *high* to low ground, fed by `rain` and snow.

1. It begins at a *source*.
2. It takes in smaller streams:
   - brooks
   - creeks
3. It ends in a lake or the sea.

| river | length |
|---|---:|
| Nile | 6,650 km |
| Amazon | 6,400 km |

```python
def flow(metres: float, seconds: float) -> float:
    return metres / seconds
```

> “You can't step twice into the same river.” See [Heraclitus](https://example.org/h). Größe: 日本語 🌾"""
ENDED = {"error": {"message": "The engine has ended."}}
STATUS: dict[str, Any] = {
    "time": "2026-11-27T21:00:00Z",
    "uptime_seconds": 93784,
    "models": {
        "river-135m": {"ready": 1, "queue": 2, "release": {"ref": "finetune/export@3", "digest": "sha256:5f2c9e0d"}},
        "old": {"ready": 0, "queue": 0, "release": {"ref": "finetune/export@2", "digest": "sha256:77aa"}},
    },
    "tokens_per_second": 412.7,
    "spend_usd": 1.23456,
    "latency": {
        "first_token": {"count": 1949, "p50": 0.034, "p95": 0.081, "p99": 1.25},
        "token": {"count": 0, "p50": 0.0042, "p95": 0.0071, "p99": None},
    },
    "requests": {"200": 1934, "429": 12},
    "keys": [{"key": "ann", "requests": 1200, "cost_usd": 0.9}, {"key": "<b>bob</b>", "requests": 749}],
    "guards": [{"rule": "email", "direction": "output", "action": "mask", "count": 12}],
    "audit": {"enabled": True, "failing": False, "lost": None},
}


class StandIn:
    """What a server has been asked, and what it shall do."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[dict[str, Any]] = []
        self.left: list[str] = []  # the questions whose reader went away
        self.votes = Feedback(folder)
        self.key: str | None = None
        self.status: Any = STATUS
        self.numbers = iter(range(1, 10_000))
        pages = [
            Route(path, lambda request, file=file: Response(file.content, headers=dict(file.headers)))
            for path, file in page_files().items()
        ]
        blank = '<!doctype html><link rel="icon" href="data:,"><div id="place"></div>'
        routes = [
            Route("/blank", lambda request: HTMLResponse(blank)),
            Route("/v1/models", self.models),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/feedback", self.feedback, methods=["POST"]),
            Route("/status.json", self.status_json),
        ]
        self.app = Starlette(routes=[*pages, *routes])

    def refused(self, request: Request) -> JSONResponse | None:
        if self.key is None or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        return problem(401, "This key isn't known.")

    async def models(self, request: Request) -> Response:
        return self.refused(request) or JSONResponse({"data": [{"id": "river-135m"}, {"id": "river-135m-old"}]})

    async def status_json(self, request: Request) -> Response:
        return self.refused(request) or JSONResponse(self.status)

    async def feedback(self, request: Request) -> Response:
        try:
            self.votes.add(await request.json(), "local", "sha256:5f2c")
        except ValueError as error:
            return problem(400, str(error))
        return Response(status_code=204)

    async def chat(self, request: Request) -> Response:
        if refused := self.refused(request):
            return refused
        body = await request.json()
        self.asked.append(body)
        question = body["messages"][-1]["content"]
        if question.startswith("refuse"):
            return JSONResponse({"error": {"message": "The prompt has 900 tokens, the context 512."}}, 400)
        if question.startswith("busy"):
            return JSONResponse({"error": {"message": "Too many requests."}}, 429, {"Retry-After": "7"})
        if question.startswith("crash"):
            return Response("<h1>Bad gateway</h1>", 502)
        headers = {"x-request-id": f"request-{next(self.numbers)}"}
        return StreamingResponse(self.pieces(question), headers=headers, media_type="text/event-stream")

    async def pieces(self, question: str) -> AsyncIterator[bytes]:
        size = 3 if question.startswith("split") else 64
        try:
            for text, pause in script(question):
                data = text.encode()
                for begin in range(0, len(data), size):
                    yield data[begin : begin + size]
                await asyncio.sleep(pause)
        except asyncio.CancelledError:
            self.left.append(question)
            raise


def problem(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status)


def script(question: str) -> Iterator[tuple[str, float]]:
    """The events of an answer, each with a pause after it."""
    word, _, rest = question.partition(" ")
    text = {"hostile": HOSTILE, "markdown": MARKDOWN, "split": MARKDOWN, "What": MARKDOWN}.get(
        word, f"You said: {question}"
    )
    pause, end = 0.002, "\r\n\r\n" if word == "split" else "\n\n"
    if word == "long":
        text = " ".join(f"{number}" for number in range(2000))
    if word == "huge":
        text = rest * (1_000_000 // len(rest))
    if word == "vary":
        text = f"Answer {time.monotonic_ns()}"
    if word == "slow":
        text, pause = "la " * 1000, 0.05
    size = 100_000 if word == "huge" else 6

    def event(choices: list[Any], **more: Any) -> str:
        return f"data: {json.dumps({'choices': choices, **more}, ensure_ascii=False)}{end}"

    def delta(content: str | None, finish: str | None = None) -> str:
        return event([{"index": 0, "delta": {} if content is None else {"content": content}, "finish_reason": finish}])

    yield f": a comment{end}", 0
    yield event([{"index": 0, "delta": {"role": "assistant", "content": ""}}]), 0.03
    for begin in range(0, len(text), size):
        yield delta(text[begin : begin + size]), pause
        if word == "fail" and begin > 5:
            yield (f"event: error{end[: len(end) // 2]}data: {json.dumps(ENDED)}{end}", 0)
            yield f"data: [DONE]{end}", 0
            return
        if word == "drop" and begin > 5:
            return
    yield delta(None, {"cut": "length", "police": "content_filter"}.get(word, "stop")), 0
    yield event([], usage={"prompt_tokens": 12, "completion_tokens": 34, "total_tokens": 46}), 0
    yield f"data: [DONE]{end}", 0


@contextmanager
def serving(app: Starlette) -> Iterator[str]:
    """The address of an application, on a port of this machine."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
