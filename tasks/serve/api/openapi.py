"""The OpenAPI document of the server, at `/openapi.json`: for clients that are generated, and for fuzzers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.serve.api import completions
from tasks.serve.api.fields import MOST_LOGPROBS, MOST_STOPS
from tasks.serve.config import RequestConfig

TEXT, FLAG = {"type": "string"}, {"type": "boolean"}


def document(bounds: RequestConfig) -> dict[str, Any]:
    """The paths with their requests. Answers are those of OpenAI's and Anthropic's API."""
    posts = {
        "/v1/chat/completions": _chat(bounds),
        "/v1/completions": _completion(bounds),
        "/v1/messages": _message(bounds),
        "/v1/messages/count_tokens": _message(bounds, ["messages"]),
        "/v1/embeddings": _object({"model": TEXT, "input": {"oneOf": [TEXT, _rows(TEXT)]}}, ["input"]),
    }
    paths: dict[str, Any] = {path: {"post": _operation(schema)} for path, schema in posts.items()}
    paths |= {
        path: {"get": _operation(None)} for path in ("/v1/models", "/health", "/ready", "/metrics", "/status.json")
    }
    name = {"name": "name", "in": "path", "required": True, "schema": TEXT}
    paths["/v1/models/{name}"] = {"get": {**_operation(None), "parameters": [name]}}
    security = {"key": {"type": "http", "scheme": "bearer"}}
    info = {"title": "Gristmill", "version": "1", "description": "A released model, guarded and watched"}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"securitySchemes": security}}


def _operation(schema: Any) -> dict[str, Any]:
    codes = ("200", "400", "401", "403", "404", "405", "408", "413", "415", "421", "429", "503", "504")
    answer = {"responses": {code: {"description": "an answer" if code == "200" else "a refusal"} for code in codes}}
    if schema is None:
        return answer
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}, **answer}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _rows(items: Any, most: int | None = None) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, **({"maxItems": most} if most else {})}


def _number(least: float, most: float) -> dict[str, Any]:
    return {"type": "number", "minimum": least, "maximum": most}


def _whole(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _common(bounds: RequestConfig) -> dict[str, Any]:
    """Fields of both of OpenAI's routes."""
    return {
        "model": TEXT,
        "n": _whole(1, bounds.max_choices),
        "stream": FLAG,
        "stream_options": _object({"include_usage": FLAG}, []),
        "max_tokens": _whole(1, 1 << 30),
        "temperature": _number(0, 2),
        "top_p": _number(0, 1),
        "top_k": _whole(-1, 1_000_000),
        "min_p": _number(0, 1),
        "presence_penalty": _number(-2, 2),
        "frequency_penalty": _number(-2, 2),
        "repetition_penalty": _number(0.01, 10),
        "seed": _whole(-(2**63), 2**63 - 1),
        "stop": {"oneOf": [TEXT, _rows(TEXT, MOST_STOPS)]},
        "response_format": {"type": "object"},
        "grammar": TEXT,
        "user": TEXT,
    }


def _chat(bounds: RequestConfig) -> dict[str, Any]:
    part = _object({"type": {"const": "text"}, "text": TEXT}, ["type", "text"])
    roles = ["system", "developer", "user", "assistant", "tool"]
    message = _object({"role": {"enum": roles}, "content": {"oneOf": [TEXT, _rows(part)]}}, ["role", "content"])
    further = {
        "messages": _rows(message, bounds.max_messages),
        "max_completion_tokens": _whole(1, 1 << 30),
        "logprobs": FLAG,
        "top_logprobs": _whole(0, MOST_LOGPROBS),
        "tools": {"type": "array", "items": {"type": "object"}},
        "tool_choice": {"enum": ["auto", "none"]},
    }
    return _object({**_common(bounds), **further}, ["messages"])


def _completion(bounds: RequestConfig) -> dict[str, Any]:
    prompt = {"oneOf": [TEXT, _rows({"type": "integer", "minimum": 0})]}
    logprobs = {
        "logprobs": _whole(0, completions.MOST_LOGPROBS),
        "prompt_logprobs": _whole(0, completions.MOST_PROMPT_LOGPROBS),
    }
    return _object({**_common(bounds), "prompt": prompt, **logprobs}, ["prompt"])


def _message(bounds: RequestConfig, required: Sequence[str] = ("messages", "max_tokens")) -> dict[str, Any]:
    message = _object({"role": {"enum": ["user", "assistant"]}, "content": TEXT}, ["role", "content"])
    fields = {
        "model": TEXT,
        "messages": _rows(message, bounds.max_messages),
        "system": TEXT,
        "max_tokens": _whole(1, 1 << 30),
        "temperature": _number(0, 1),
        "top_p": _number(0, 1),
        "top_k": _whole(0, 1_000_000),
        "stop_sequences": _rows(TEXT, MOST_STOPS),
        "stream": FLAG,
    }
    return _object(fields, list(required))
