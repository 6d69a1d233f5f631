"""The form of an API's answers, whole or as server-sent events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import orjson

from tasks.serve.api.errors import Refusal
from tasks.serve.ask import Ask, Delta, Usage


def event(value: Any, name: str | None = None) -> bytes:
    """A server-sent event with JSON data."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + orjson.dumps(value) + b"\n\n"


class Form(ABC):
    """How one API writes an answer. `prefix` begins the id of an answer."""

    prefix = "chatcmpl-"

    def __init__(self, ask: Ask, model: str, request_id: str, created: int, digest: str) -> None:
        self.ask, self.id = ask, f"{self.prefix}{request_id}"
        self._common = {"created": created, "model": model, "system_fingerprint": digest}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, **self._common}

    @abstractmethod
    def whole(self, answers: Sequence[Sequence[Delta]], usage: Usage) -> dict[str, Any]:
        """The body of an answer that isn't streamed."""

    @abstractmethod
    def begin(self, usage: Usage) -> list[bytes]:
        """The events before the first text. `usage` has the tokens of the prompt."""

    @abstractmethod
    def add(self, delta: Delta) -> list[bytes]:
        """The events of an addition."""

    @abstractmethod
    def end(self, usage: Usage) -> list[bytes]:
        """The events after the last answer."""

    def fail(self, refusal: Refusal) -> list[bytes]:
        """The events of a failure in mid-stream, after which the stream ends."""
        return [event(refusal.openai()), b"data: [DONE]\n\n"]
