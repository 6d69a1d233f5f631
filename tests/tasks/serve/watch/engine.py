"""An engine over HTTP in a process of its own, to be killed and stopped: it answers a token at a time."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence

import httpx

from tasks.serve.engines.protocol import EngineFault, Piece, Sampling

SERVER = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
count = 0
async def token(request):
    global count
    count += 1
    return PlainTextResponse("the")
async def counted(request):
    return PlainTextResponse(str(count))
app = Starlette(routes=[Route("/token", token), Route("/count", counted)])
uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
"""


class HttpEngine:
    """The part of an engine that a check asks."""

    def __init__(self, port: int) -> None:
        self.name, self.features, self._port = "http", frozenset[str](), port
        self._process: subprocess.Popen[bytes] | None = None

    def start_process(self) -> None:
        """Start it and wait until it answers."""
        self._process = subprocess.Popen([sys.executable, "-c", SERVER, str(self._port)])
        for _ in range(500):
            try:
                httpx.get(f"http://127.0.0.1:{self._port}/count")
                return
            except httpx.TransportError:
                time.sleep(0.02)
        raise TimeoutError

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its process."""
        assert self._process
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()

    def asked(self) -> int:
        """How many tokens it was asked for."""
        return int(httpx.get(f"http://127.0.0.1:{self._port}/count").text)

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """One token at a time."""
        for _ in range(sampling.max_tokens):
            try:
                async with httpx.AsyncClient(timeout=60) as client:
                    answer = await client.get(f"http://127.0.0.1:{self._port}/token")
            except httpx.TransportError as error:
                raise EngineFault("gone") from error
            yield Piece(answer.text, (1,))

    @property
    def alive(self) -> bool:
        return True

    async def start(self) -> None:
        """Start it."""
        self.start_process()

    async def stop(self) -> None:
        """End it."""
        self.send(signal.SIGKILL)

    async def running(self) -> int:
        """Not asked by a check."""
        raise EngineFault("not counted")

    async def next_token(self, ids: Sequence[int], count: int, adapter: str | None = None) -> list[tuple[int, float]]:
        """Not asked by a check."""
        raise EngineFault("no probabilities")

    async def embed(self, ids: Sequence[int]) -> list[float]:
        """Not asked by a check."""
        raise EngineFault("no embeddings")
