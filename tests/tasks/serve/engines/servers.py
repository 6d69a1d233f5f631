"""Real servers for tests of engines: llama.cpp's own over TCP, and one that sends the bytes that a test names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tasks.serve.engines.openai_url import UrlConfig, UrlEngine


@contextmanager
def llama_server(path: Path, *, key: str = "", **settings: Any) -> Iterator[str]:
    """llama.cpp's server of a GGUF file on a free port of this host. Yields its address."""
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    params.model.path = str(path)
    params.n_parallel, params.cpuparams.n_threads, params.cpuparams_batch.n_threads = 2, 1, 1
    params.n_gpu_layers, params.cache_ram_mib, params.verbosity = 0, 0, -1
    params.warmup = params.fit_params = False
    params.endpoint_metrics = True
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.api_keys = [key] if key else []
    for name, value in settings.items():
        setattr(params, name, value)
    server = Server(params)
    server.handle_metrics()  # only then does its loop run
    try:
        yield f"{server.listening_address}/v1"
    finally:
        del server


@asynccontextmanager
async def saying(*parts: bytes, pause: float = 0.0) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers every connection by these bytes, one part at a time, and closes it. Yields its address, and
    the requests that it got."""
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", requests


def streamed(*lines: str, head: str = "200 OK") -> list[bytes]:
    """The bytes of a response with a chunk for each text."""
    parts = [f"HTTP/1.1 {head}\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n".encode()]
    parts += [f"{len(line.encode()):x}\r\n{line}\r\n".encode() for line in lines]
    return [*parts, b"0\r\n\r\n"]


def engine_of(url: str, tokenizer: Any, **config: Any) -> UrlEngine:
    return UrlEngine(UrlConfig.model_validate({"url": url, "model": "any", **config}), tokenizer)


async def text_of(pieces: AsyncIterator[Any]) -> tuple[str, str | None, Sequence[Any]]:
    """The text of an answer, why it ended, and its pieces."""
    found = [piece async for piece in pieces]
    return "".join(piece.text for piece in found), found[-1].finish, found
