"""Server-sent events of an engine, as JSON objects."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping
from typing import Any

import httpx
import orjson

from tasks.serve.engines.protocol import EngineFault, EngineRefusal


async def events(
    client: httpx.AsyncClient, path: str, request: Mapping[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    """The events of a streamed answer, up to `[DONE]` or the end. Closing the iterator closes the connection, by which
    an engine aborts the request. Raises EngineFault, and EngineRefusal for a status from 400 to 499."""
    try:
        async with client.stream("POST", path, content=orjson.dumps(request), headers=JSON) as response:
            if response.status_code != httpx.codes.OK:
                raise _refusal(response.status_code, await response.aread())
            rest = b""
            async for data in response.aiter_raw():
                *whole, rest = (rest + data).split(b"\n")
                for line in whole:
                    if not line.startswith(b"data: "):
                        continue
                    if line.startswith(b"data: [DONE]"):
                        return
                    event = orjson.loads(line[6:])
                    if "error" in event:
                        raise EngineFault(f"it failed in its answer: {event['error']}")
                    yield event
    except (httpx.HTTPError, orjson.JSONDecodeError) as error:
        raise EngineFault(f"it doesn't answer: {error or type(error).__name__}") from error


async def answer(client: httpx.AsyncClient, path: str, request: Mapping[str, Any]) -> Any:
    """The answer to a request that isn't streamed. Raises EngineFault and EngineRefusal."""
    return await _whole(client.post(path, content=orjson.dumps(request), headers=JSON))


async def fetched(client: httpx.AsyncClient, path: str) -> Any:
    """What a path has. Raises EngineFault and EngineRefusal."""
    return await _whole(client.get(path))


async def _whole(request: Awaitable[httpx.Response]) -> Any:
    try:
        response = await request
        if response.status_code != httpx.codes.OK:
            raise _refusal(response.status_code, response.content)
        return orjson.loads(response.content)
    except (httpx.HTTPError, orjson.JSONDecodeError) as error:
        raise EngineFault(f"it doesn't answer: {error or type(error).__name__}") from error


JSON = {"Content-Type": "application/json"}


def _refusal(status: int, body: bytes) -> EngineFault | EngineRefusal:
    code: str | None = None
    try:
        error = orjson.loads(body)["error"]
        message = str(error["message"] if isinstance(error, dict) else error)
        code = error.get("code") if isinstance(error, dict) else None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = body[:200].decode(errors="replace") or f"status {status}"
    if 400 <= status < 500:
        return EngineRefusal(message, code if isinstance(code, str) else None)
    return EngineFault(f"it answered {status}: {message}")
