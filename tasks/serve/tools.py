"""Calls of tools in an answer's text, in the tags of Hermes: `<tool_call>{"name": …, "arguments": …}</tool_call>`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from tasks.serve.api.fields import DEEPEST, is_deeper

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class ToolText:
    """Separates calls from text as both arrive. A call that isn't valid JSON stays text, so that nothing is lost.
    `masked` is a text as it may be sent. It is asked about each text of a call, in which JSON may spell a sign as
    `\u0040`, and about the call as a whole."""

    def __init__(self, masked: Callable[[str], str] = str) -> None:
        self.calls: list[Mapping[str, Any]] = []
        self.written: list[str] = []  # the calls' texts, with their tags
        self._masked = masked
        self._held = ""

    def feed(self, text: str) -> str:
        """The text that isn't part of a call, as far as that is known."""
        self._held += text
        released = ""
        while True:
            start = self._held.find(OPEN)
            if start < 0:
                kept = _begun(self._held)
                released += self._held[: len(self._held) - kept]
                self._held = self._held[len(self._held) - kept :]
                return released
            end = self._held.find(CLOSE, start)
            if end < 0:
                released += self._held[:start]
                self._held = self._held[start:]
                return released
            call = self._call(self._held[start + len(OPEN) : end])
            whole = self._held[start : end + len(CLOSE)]
            released += self._held[:start] + ("" if call else whole)
            self._take(call, whole)
            self._held = self._held[end + len(CLOSE) :]

    def finish(self) -> str:
        """The rest, at the end of the answer."""
        rest, self._held = self._held, ""
        if rest.startswith(OPEN) and (call := self._call(rest.removeprefix(OPEN))):  # the closing tag ended the answer
            self._take(call, rest)
            return ""
        return rest

    def _take(self, call: Mapping[str, Any] | None, written: str) -> None:
        if call:
            self.calls.append(call)
            self.written.append(written)

    def _call(self, text: str) -> Mapping[str, Any] | None:
        try:
            found = orjson.loads(text)  # stricter than json: no NaN, and no half of a surrogate pair
        except orjson.JSONDecodeError:
            return None
        if not isinstance(found, dict) or not isinstance(found.get("name"), str):
            return None
        arguments = found.get("arguments", {})
        if not isinstance(arguments, dict) or is_deeper(arguments, DEEPEST):
            return None
        try:
            function = {"name": self._masked(found["name"]), "arguments": self._json(arguments)}
        except orjson.JSONDecodeError:
            return None
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}

    def _json(self, value: dict[str, Any]) -> str:
        """The arguments as JSON. Raises JSONDecodeError if a guard would break it."""
        masked = self._masked(orjson.dumps(self._value(value)).decode())
        orjson.loads(masked)
        return masked

    def _value(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._masked(name): self._value(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._value(one) for one in value]
        if isinstance(value, str):
            return self._masked(value)
        if isinstance(value, int | float) and self._masked(str(value)) != str(value):
            return self._masked(str(value))
        return value


def _begun(text: str) -> int:
    """The length of the end of a text that may begin a tag."""
    return next((size for size in range(min(len(OPEN) - 1, len(text)), 0, -1) if OPEN.startswith(text[-size:])), 0)
