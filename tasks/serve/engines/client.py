"""The HTTP client of engines: requests, and streams of server-sent events.

An engine's error comes as a status, or in the stream of an answer with status 200, as vLLM does. Either way a code from
400 to 499 means that it refuses the request (EngineRefusal), and any other that it failed (EngineFault).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import orjson

from storage.errors import harmless
from tasks.serve.engines.protocol import EngineFault, EngineRefusal
from tasks.serve.engines.transport import DirectTransport

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 300.0  # without a byte: a long prompt, or a full batch before it, takes a while
LONGEST_EVENT = 16 << 20  # bytes
LONGEST_SENTENCE = 500  # characters of an engine's message
# Codes that concern our credentials, our address or the engine's load, and not the content of a request
OURS = {401, 403, 404, 405, 407, 408, 425, 429}
JSON = {"Content-Type": "application/json"}
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)  # our server limits its requests itself


def open_client(url: str, *, key: str | None = None, socket: str | None = None) -> httpx.AsyncClient:
    """A client of the engine at `url`, or behind a Unix socket. TLS is verified, and redirects are not followed."""
    return httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        transport=DirectTransport(socket) if socket or url.startswith("http:") else None,
        limits=LIMITS,
        timeout=httpx.Timeout(IDLE_SECONDS, connect=CONNECT_SECONDS),
    )


async def events(client: httpx.AsyncClient, path: str, json: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    """The JSON objects of a stream, up to `[DONE]` or the end of the body. Close the iterator to abort the request.
    Raises EngineFault and EngineRefusal."""
    with _as_faults():
        async with client.stream("POST", path, content=orjson.dumps(json), headers=JSON) as response:
            if response.status_code != httpx.codes.OK:
                raise _error(response.status_code, await response.aread())
            rest = b""
            async for chunk in response.aiter_raw():
                *lines, rest = (rest + chunk).split(b"\n") if rest else chunk.split(b"\n")
                if len(rest) > LONGEST_EVENT:
                    raise EngineFault(f"The engine sent an event of more than {LONGEST_EVENT:,} bytes.")
                for line in lines:
                    if line[:5] != b"data:":
                        continue
                    if line[5:].strip() == b"[DONE]":
                        return
                    event = _object(line[5:])
                    if event.get("error") is not None:
                        raise _error(httpx.codes.INTERNAL_SERVER_ERROR, line[5:])
                    yield event


async def ask(client: httpx.AsyncClient, method: str, path: str, json: Mapping[str, Any] | None = None) -> bytes:
    """The body of an answer. Raises EngineFault and EngineRefusal."""
    with _as_faults():
        content = orjson.dumps(json) if json is not None else None
        response = await client.request(method, path, content=content, headers=JSON)
        if response.status_code != httpx.codes.OK:
            raise _error(response.status_code, response.content)
        return response.content


async def ask_json(
    client: httpx.AsyncClient, method: str, path: str, json: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The JSON object of an answer. Raises EngineFault and EngineRefusal."""
    return _object(await ask(client, method, path, json))


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise EngineFault(f"The engine sent something else than JSON: {_short(data)}.") from error
    if not isinstance(value, dict):
        raise EngineFault(f"The engine sent something else than a JSON object: {_short(data)}.")
    return value


def _error(status: int, body: bytes) -> EngineFault | EngineRefusal:
    """The error in a body, as {"error": {"message", "code"}}, {"error": "…"} or in other words."""
    try:
        error = _object(body).get("error")
    except EngineFault:
        error = body.decode(errors="replace")
    if isinstance(error, dict):
        code, sentence = error.get("code"), error.get("message")
        status = code if isinstance(code, int) else status
    else:
        sentence = error
    text = harmless(str(sentence or ""))[:LONGEST_SENTENCE].strip()
    if 400 <= status < 500 and status not in OURS:
        named = str(error["code"]) if isinstance(error, dict) and isinstance(error.get("code"), str) else None
        return EngineRefusal(text or f"The engine refuses the request with status {status}.", named)
    reason = text or "it gives no reason"
    return EngineFault(f"The engine failed with status {status}: {reason}", status, reason)


def _short(data: bytes) -> str:
    return repr(data[:80].decode(errors="replace"))


@contextmanager
def _as_faults() -> Iterator[None]:
    """Within the block, httpx's errors become EngineFault."""
    try:
        yield
    except httpx.HTTPError as error:
        raise EngineFault(f"The engine doesn't answer ({type(error).__name__}: {error}).") from error
