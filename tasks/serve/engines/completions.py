"""A model behind an OpenAI-compatible server: `/v1/completions` with token ids.

OpenAI's API lacks some of the fields that a request may need. Servers have them under names of their own, so what is
sent depends on the server's kind. A field that a kind doesn't know is refused, never dropped.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

import httpx

from tasks.serve.engines.client import ask, ask_json, events
from tasks.serve.engines.protocol import EngineFault, EngineRefusal, Finish, NotReported, Piece, Sampling, TokenChoice

Kind = Literal["vllm", "llama.cpp", "openai"]
FINISHES: Mapping[str, Finish] = {"stop": "stop", "length": "length"}
ID = re.compile(r"token_id:(\d+)")  # how vLLM writes a token that is to be named by its id
FORCED = 1e3  # a bias that forces a token. llama.cpp reports the probabilities without it
FEATURES: Mapping[Kind, frozenset[str]] = {
    "vllm": frozenset({"ids", "logprobs", "json_schema", "grammar"}),
    "llama.cpp": frozenset({"logprobs", "json_schema", "grammar"}),
    "openai": frozenset({"logprobs"}),
}
# The metrics of requests that a server works on, or keeps waiting
WORK = re.compile(
    rb"^(?:vllm:num_requests_(?:running|waiting)|llamacpp:requests_(?:processing|deferred))(?:\{[^}]*\})? (\S+)$", re.M
)


class Completions:
    """A running server's model, as an engine that neither starts nor ends it."""

    def __init__(self, client: httpx.AsyncClient, model: str, *, kind: Kind, name: str) -> None:
        self.client, self.model, self.kind, self.name = client, model, kind, name
        self.features = FEATURES[kind]
        self.metrics: str | None = None  # the address of the server's metrics, if it has any
        self.further: Mapping[str, Any] = {}  # fields of each request, which replace ours
        self._answering = 0

    @property
    def alive(self) -> bool:
        return True

    async def start(self) -> None:
        """Ask the server for its models. Raises EngineFault."""
        await ask(self.client, "GET", "/models")

    async def stop(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """Answer a prompt. Closing the iterator closes the connection, by which the server aborts the request. Raises
        EngineFault and EngineRefusal."""
        request = {**self._request(ids, sampling), "stream": True, **self.further}
        self._answering += 1
        finished = False
        try:
            async with aclosing(events(self.client, "/completions", request)) as stream:
                async for event in stream:
                    if event.get("choices"):
                        piece = _piece(event["choices"][0], sampling.logprobs)
                        finished = finished or piece.finish is not None
                        yield piece
        finally:
            self._answering -= 1
        if not finished:
            raise EngineFault("The engine's answer ended without a reason.")

    async def running(self) -> int:
        """The requests that the server works on or keeps waiting, by its own counters, or ours if it has none. Raises
        EngineFault."""
        if self.metrics is None:
            return self._answering
        counts = WORK.findall(await ask(self.client, "GET", self.metrics))
        if not counts:
            raise EngineFault("The engine's metrics don't count its requests.")
        return int(sum(map(float, counts)))

    async def next_token(self, ids: Sequence[int], count: int, adapter: str | None = None) -> list[tuple[int, float]]:
        """The likeliest tokens after a prompt. Raises EngineFault, and NotReported for a server that doesn't
        report tokens by their ids."""
        sampling = Sampling(max_tokens=1, temperature=0.0, logprobs=count, adapter=adapter)
        request = {**self._request(ids, sampling), "return_tokens_as_token_ids": True}
        if self.kind != "llama.cpp":
            return _likeliest(await self._choice({**request, **self.further}))[:count]
        # It reports nothing for a token that is part of a character, so another is forced: a token of the prompt
        for forced in dict.fromkeys(reversed(ids)):
            if found := _likeliest(await self._choice({**request, "logit_bias": [[forced, FORCED]], **self.further})):
                return found[:count]
        raise EngineFault("The engine doesn't report probabilities.")

    async def embed(self, ids: Sequence[int]) -> list[float]:
        """The embedding of a text. Raises EngineRefusal for a server without embeddings, and EngineFault."""
        if "embeddings" not in self.features:
            raise EngineRefusal("This model doesn't make embeddings.")
        return await self._embedding(ids)

    async def find_features(self) -> None:
        """Find out by a request each whether the server makes embeddings and has metrics."""
        try:
            await self._embedding(self.shortest)
            self.features |= {"embeddings"}
        except (EngineFault, EngineRefusal):
            pass  # a server says in many ways that it lacks them
        address = str(self.client.base_url.copy_with(raw_path=b"/metrics"))
        try:
            found = WORK.search(await ask(self.client, "GET", address))
        except (EngineFault, EngineRefusal):
            found = None
        self.metrics = address if found else None

    shortest: Sequence[int] = (1,)  # a prompt that any model takes

    def prompt(self, ids: Sequence[int]) -> list[int] | str:
        """A prompt as the server takes it."""
        return list(ids)

    async def _choice(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = await ask_json(self.client, "POST", "/completions", request)
        try:
            choice: Mapping[str, Any] = answer["choices"][0]
        except (LookupError, TypeError) as error:
            raise EngineFault("The engine's answer lacks choices.") from error
        return choice

    async def _embedding(self, ids: Sequence[int]) -> list[float]:
        request = {"model": self.model, "input": self.prompt(ids)}
        answer = await ask_json(self.client, "POST", "/embeddings", request)
        try:
            return [float(value) for value in answer["data"][0]["embedding"]]
        except (LookupError, TypeError, ValueError) as error:
            raise EngineFault("The engine's answer lacks an embedding.") from error

    def _request(self, ids: Sequence[int], sampling: Sampling) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": sampling.adapter or self.model,
            "prompt": self.prompt(ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        }
        optional = {"seed": sampling.seed, "stop": list(sampling.stop) or None, "logprobs": sampling.logprobs}
        request |= {name: value for name, value in optional.items() if value is not None}
        return request | FURTHER[self.kind](sampling, len(ids) + sampling.max_tokens)


def _of_vllm(sampling: Sampling, length: int) -> dict[str, Any]:
    """All of them are sent, as vLLM takes those that aren't from the release's generation_config.json."""
    fields: dict[str, Any] = {
        "return_token_ids": True,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
    }
    shape = {"json": sampling.json_schema, "grammar": sampling.grammar}
    if asked := {name: value for name, value in shape.items() if value is not None}:
        fields["structured_outputs"] = asked
    return fields


def _of_llama_cpp(sampling: Sampling, length: int) -> dict[str, Any]:
    """All of them are sent, as its own defaults are not OpenAI's. Penalties count the whole text, as they do there."""
    fields: dict[str, Any] = {
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": length,
    }
    shape = {"json_schema": sampling.json_schema, "grammar": sampling.grammar}
    return fields | {name: value for name, value in shape.items() if value is not None}


def _of_openai(sampling: Sampling, length: int) -> dict[str, Any]:
    """Raises EngineRefusal for what OpenAI's API lacks."""
    plain = Sampling(max_tokens=1)
    lacking = ("top_k", "min_p", "repetition_penalty", "json_schema", "grammar")
    if wrong := [name for name in lacking if getattr(sampling, name) != getattr(plain, name)]:
        raise EngineRefusal(f"This model's server doesn't know {', '.join(wrong)}.")
    return {}


FURTHER = {"vllm": _of_vllm, "llama.cpp": _of_llama_cpp, "openai": _of_openai}


def _piece(choice: Mapping[str, Any], count: int | None) -> Piece:
    """A piece from a choice in an event. Raises EngineFault for an answer that the server gave up."""
    reason = choice.get("finish_reason")
    if reason is not None and reason not in FINISHES:
        raise EngineFault(f"The engine ended its answer by {str(reason)[:40]!r}.")
    choices, ids = _choices(choice.get("logprobs"), count or 0)
    return Piece(
        text=choice.get("text") or "",
        ids=tuple(choice.get("token_ids") or ids),
        choices=choices,
        finish=FINISHES[reason] if reason else None,
    )


def _choices(reported: Mapping[str, Any] | None, count: int) -> tuple[tuple[TokenChoice, ...], tuple[int, ...]]:
    """The tokens drawn, with their `count` likeliest alternatives, and their ids if known, from OpenAI's older form of
    log-probabilities or its newer one, which llama.cpp uses for completions too."""
    if not reported:
        return (), ()
    ids: tuple[int, ...] = ()
    if "content" in reported:
        tokens = reported["content"] or []
        tops = [[(top["token"], top["logprob"]) for top in one["top_logprobs"]] for one in tokens]
        rows = [(one["token"], one["logprob"], top) for one, top in zip(tokens, tops, strict=True)]
        ids = tuple(one["id"] for one in tokens if "id" in one)
    else:
        named = reported.get("top_logprobs") or [None] * len(reported["tokens"])
        tops = [list((top or {}).items()) for top in named]  # vLLM adds the token drawn, if it isn't among them
        rows = list(zip(reported["tokens"], reported["token_logprobs"], tops, strict=True))
    ordered = ((text, log, sorted(top, key=lambda pair: -pair[1])[:count]) for text, log, top in rows)
    return tuple(TokenChoice(text, log, tuple(top)) for text, log, top in ordered), ids


def _likeliest(choice: Mapping[str, Any]) -> list[tuple[int, float]]:
    """The first token's alternatives by id, the likeliest first. Raises NotReported if they lack ids."""
    reported = choice.get("logprobs") or {}
    if tokens := reported.get("content"):
        found = [(one.get("id"), one["logprob"]) for one in tokens[0]["top_logprobs"]]
    else:
        matched = [(ID.fullmatch(text), log) for text, log in ((reported.get("top_logprobs") or [{}])[0] or {}).items()]
        found = [(int(match[1]) if match else None, log) for match, log in matched]
    if any(id is None for id, _ in found):
        raise NotReported("This model's server doesn't report tokens by their ids.")
    numbers = [(int(id), math.nan if log is None else float(log)) for id, log in found]  # null is a NaN
    return sorted(numbers, key=lambda pair: -pair[1])
