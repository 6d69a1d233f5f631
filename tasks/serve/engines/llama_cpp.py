"""llama.cpp's server in a supervised child, on a Unix socket that only this user reaches."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from models.runtimes.llama_server import LlamaServerSpec
from tasks.serve.engines.client import ask, ask_json, events, open_client
from tasks.serve.engines.grammars import Apart, Schemas
from tasks.serve.engines.process import STOP_SECONDS, ChildEngine, EngineProcess
from tasks.serve.engines.protocol import EngineFault, EngineRefusal, Finish, Piece, Sampling, TokenChoice

RUNNING = re.compile(r"^llamacpp:requests_(?:processing|deferred) (\d+)", re.MULTILINE)


class LlamaCppEngine(ChildEngine):
    """A GGUF file, served by llama.cpp. `adapters` are GGUF files of adapters by name."""

    name = "llama.cpp"
    features = frozenset({"ids", "logprobs", "json_schema", "grammar", "grammar_apart"})

    def __init__(
        self, spec: LlamaServerSpec, log: Path, adapters: Sequence[str] = (), *, is_apart: bool = False
    ) -> None:
        """`is_apart`: it follows grammars itself, which one for everybody leaves to another."""
        self._spec, self.log, self._adapters = spec, log, tuple(adapters)
        self._apart, self._schemas = None, Schemas()
        if not is_apart:
            alone = replace(spec, slots=1, gpu_layers=0, draft=None)
            self._apart = Apart(LlamaCppEngine(alone, log, adapters, is_apart=True))
        self._process = EngineProcess(self.name, "models.runtimes.llama_server", log)
        self._client: httpx.AsyncClient | None = None

    async def start(self) -> None:
        await self.stop()
        await self._process.start(lambda socket: replace(self._spec, socket=socket).as_json())
        self._client = open_client("http://llama.cpp", socket=self._process.socket)

    async def stop(self, patience: float = STOP_SECONDS) -> None:
        if self._apart is not None:
            await self._apart.stop()
        await self._schemas.stop()
        await self._process.stop(patience)
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def generate(self, ids: Sequence[int], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        if sampling.json_schema is not None:
            await self._schemas.check(sampling.json_schema)
        if sampling.grammar is not None and self._apart is not None:
            async with contextlib.aclosing(self._apart.generate(ids, sampling)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        async with contextlib.aclosing(events(self._open(), "/completion", self._request(ids, sampling))) as answered:
            async for event in answered:
                finish: Finish | None = None
                if event["stop"]:
                    finish = "length" if event["stop_type"] == "limit" else "stop"
                yield Piece(
                    event["content"],
                    tuple(event.get("tokens", ())),
                    tuple(_choice(one, sampling.logprobs or 0) for one in event.get("completion_probabilities", ())),
                    finish,
                    event.get("stopping_word") or None,
                )
                if finish:
                    return
        raise EngineFault("llama.cpp ended its answer without a reason.")

    async def running(self) -> int:
        page = await ask(self._open(), "GET", "/metrics")
        return sum(map(int, RUNNING.findall(page.decode())))

    async def next_token(self, ids: Sequence[int], count: int, adapter: str | None = None) -> list[tuple[int, float]]:
        # Drawing one token and reporting it needs a whole character: `a` is forced, the reported values are without
        request = {"prompt": list(ids), "n_predict": 1, "n_probs": count, "temperature": 0, "cache_prompt": False}
        request |= {"logit_bias": [["a", 1e3]], "lora": self._lora(adapter)}
        answered = await ask_json(self._open(), "POST", "/completion", request)
        (token,) = answered["completion_probabilities"]
        return [(int(one["id"]), float(one["logprob"])) for one in token["top_logprobs"]]

    async def embed(self, ids: Sequence[int]) -> list[float]:
        raise EngineRefusal("llama.cpp serves this model for text, not for embeddings.")

    def _open(self) -> httpx.AsyncClient:
        if self._client is None or not self.alive:
            raise EngineFault("llama.cpp isn't running.")
        return self._client

    def _request(self, ids: Sequence[int], sampling: Sampling) -> dict[str, Any]:
        """A request in llama.cpp's own form, with every field that changes an answer."""
        request: dict[str, Any] = {
            "prompt": list(ids),
            "stream": True,
            "return_tokens": True,
            "n_predict": sampling.max_tokens,
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": 1 if sampling.greedy else sampling.top_k,
            "min_p": sampling.min_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": self._spec.context,
            "seed": -1 if sampling.seed is None else sampling.seed & 0x7FFFFFFF,
            "stop": list(sampling.stop),
            # The order of vLLM. The likeliest token is found 5 % faster without sorting the vocabulary
            "samplers": ["penalties", "top_k"]
            if sampling.greedy
            else ["penalties", "temperature", "top_k", "top_p", "min_p"],
            "cache_prompt": True,
        }
        if sampling.logprobs is not None:
            request["n_probs"] = max(sampling.logprobs, 1)
        if sampling.json_schema is not None:
            request["json_schema"] = sampling.json_schema
        if sampling.grammar is not None:
            request["grammar"] = sampling.grammar
        if self._adapters:
            request["lora"] = self._lora(sampling.adapter)
        return request

    def _lora(self, adapter: str | None) -> list[dict[str, Any]]:
        """The adapter that applies. Those that aren't named don't."""
        return [{"id": self._adapters.index(adapter), "scale": 1.0}] if adapter else []


def _choice(token: dict[str, Any], count: int) -> TokenChoice:
    top = tuple((one["token"], one["logprob"]) for one in token["top_logprobs"][:count])
    return TokenChoice(token["token"], token["logprob"], top)
