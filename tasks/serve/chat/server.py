"""Answers of a running server, by OpenAI's API."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx

from models.runtimes.protocol import Message
from storage.errors import ConfigError, ServerError
from tasks.serve.chat.answerer import ContextFull, Ended, Manner
from tasks.serve.engines.client import ask_json, events
from tasks.serve.engines.protocol import EngineFault, EngineRefusal

REMEDY = "Check --url, --model and the key (--key-env)."
CONNECT_SECONDS, SILENCE_SECONDS = 10.0, 600.0  # to connect, and between two parts of an answer


class ServerAnswerer:
    """A model of a server."""

    streams = True

    def __init__(self, url: str, model: str, client: httpx.AsyncClient, runner: asyncio.Runner) -> None:
        self.about, self._url, self._model = f"{model} at {url}", url, model
        self._client, self._runner = client, runner

    def answer(self, messages: Sequence[Message], manner: Manner, say: Callable[[str], None]) -> Ended:
        """Answer by the server's template."""
        request = {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": manner.tokens,
            "temperature": manner.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with told(self._url):
            return self._runner.run(self._stream(request, say))

    async def _stream(self, request: dict[str, Any], say: Callable[[str], None]) -> Ended:
        finish: str | None = None
        usage: dict[str, Any] = {}
        async with contextlib.aclosing(events(self._client, "chat/completions", request)) as answered:
            async for event in answered:
                usage = event.get("usage") or usage
                for choice in event.get("choices") or ():
                    finish = choice.get("finish_reason") or finish
                    say((choice.get("delta") or {}).get("content") or "")
        return Ended(finish, usage.get("completion_tokens"), usage.get("prompt_tokens"))


@contextlib.contextmanager
def opened_server(url: str, key_env: str | None, model: str | None) -> Iterator[ServerAnswerer]:
    """A model of the server at `url`, by default its first. Raises ConfigError and ServerError."""
    key = _key(key_env)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with asyncio.Runner() as runner:
        timeout = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
        client = httpx.AsyncClient(base_url=_address(url), headers=headers, timeout=timeout)
        try:
            yield ServerAnswerer(url, model or _first_model(url, client, runner), client, runner)
        finally:
            runner.run(client.aclose())


def _first_model(url: str, client: httpx.AsyncClient, runner: asyncio.Runner) -> str:
    with told(url):
        listed = runner.run(ask_json(client, "GET", "models"))
    try:
        return str(listed["data"][0]["id"])
    except (LookupError, TypeError) as error:
        raise ConfigError(f"{url} lists no model.", "Name one with --model.") from error


@contextlib.contextmanager
def told(url: str) -> Iterator[None]:
    """Within the block, a fault of the server is a ServerError, and a refusal a ConfigError."""
    try:
        yield
    except EngineRefusal as error:
        if error.code == "context_length_exceeded":
            raise ContextFull(str(error)) from error
        raise ConfigError(f"The server {url} refuses the request: {str(error).rstrip('.')}.", REMEDY) from error
    except EngineFault as error:
        if error.status is not None and error.status < httpx.codes.INTERNAL_SERVER_ERROR:
            remedy = "Wait, or ask for a higher limit." if error.status == httpx.codes.TOO_MANY_REQUESTS else REMEDY
            raise ConfigError(f"The server {url} refuses the request: {error.reason.rstrip('.')}.", remedy) from error
        failed = f"The server {url} failed: it{str(error).removeprefix('The engine')}"
        raise ServerError(failed, "Check that the server runs: `gristmill serve` starts one.") from error


def _address(url: str) -> httpx.URL:
    """The base of requests: /v1 below an address without a path."""
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"--url {url} is not an address: {error}.", "Write it as http://127.0.0.1:8000.") from error
    if address.scheme not in ("http", "https") or not address.host or address.query or address.fragment:
        raise ConfigError(f"--url {url} is not the address of a server.", "Write it as http://127.0.0.1:8000.")
    return address if address.path.strip("/") else address.copy_with(path="/v1")


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not re.fullmatch(r"[!-~]+", key):  # httpx would quote an invalid header, the key, in its error
        state = "is not set" if not key else "has characters that a key can't have"
        raise ConfigError(f"The environment variable {name} {state}.", f"Set {name} to the key of the server.")
    return key
