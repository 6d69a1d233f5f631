"""Anthropic's `/v1/messages`, which agents speak."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.serve.api.errors import Refusal, unfit
from tasks.serve.api.fields import Fields, contents, text_of
from tasks.serve.api.stream import Form, event
from tasks.serve.ask import Ask, Conversation, Delta, Usage
from tasks.serve.engines.protocol import Sampling

IGNORED = ("cache_control", "metadata", "service_tier")
REASONS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal", "tool_calls": "tool_use"}


def read(body: Mapping[str, Any], *, most_messages: int) -> Ask:
    """The request of a body. Raises Refusal, which names the field."""
    fields = Fields(body, IGNORED)
    model = fields.text("model", "") or ""
    limit = fields.whole("max_tokens", 1, 1 << 30)
    if limit is None:
        raise unfit("max_tokens is missing.", "max_tokens")
    system, rows = fields.raw("system"), fields.rows("messages")
    if not rows or len(rows) > most_messages:
        raise unfit(f"messages is missing or empty, or has over {most_messages:,} messages.", "messages")
    messages = [{"role": "system", "content": contents(system, "system")}] if system else []
    for number, row in enumerate(rows):
        messages += _messages(row, f"messages.{number}")
    ask = Ask(
        model,
        Conversation(messages, _tools(fields)),
        Sampling(
            max_tokens=limit,
            temperature=fields.number("temperature", 0, 1, 1.0),
            top_p=fields.number("top_p", 0, 1, 1.0),
            top_k=fields.whole("top_k", 0, 1_000_000, 0) or 0,
            stop=fields.stops("stop_sequences"),
        ),
        1,
        fields.flag("stream"),
        True,
    )
    fields.end()
    return ask


def _messages(row: Any, name: str) -> list[dict[str, Any]]:
    """A message in OpenAI's form. One with results of tools becomes one for each."""
    if not isinstance(row, Mapping):
        raise unfit(f"{name} is not an object.", name)
    role, blocks = row.get("role"), row.get("content")
    if role not in ("user", "assistant"):
        raise unfit(f"{name}.role is neither user nor assistant.", f"{name}.role")
    if unknown := sorted(map(str, row.keys() - {"role", "content"})):
        raise unfit(f"{name} has the field {unknown[0][:60]!r}, which is not supported.", name)
    if not isinstance(blocks, list):
        return [{"role": role, "content": text_of(blocks, f"{name}.content")}]
    kinds = [block.get("type") if isinstance(block, Mapping) else None for block in blocks]
    if "tool_use" not in kinds and "tool_result" not in kinds:
        return [{"role": role, "content": contents(blocks, f"{name}.content")}]
    texts, calls, results = [], [], []
    for number, block in enumerate(blocks):
        where = f"{name}.content.{number}"
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use":
            call = {"name": text_of(block.get("name"), f"{where}.name"), "arguments": block.get("input")}
            if not isinstance(call["arguments"], Mapping):
                raise unfit(f"{where}.input is not an object.", where)
            calls.append({"id": block.get("id"), "type": "function", "function": call})
        elif kind == "tool_result":
            result = {"role": "tool", "content": contents(block.get("content") or "", f"{where}.content")}
            if block.get("tool_use_id") is not None:
                result["tool_call_id"] = text_of(block["tool_use_id"], f"{where}.tool_use_id")
            results.append(result)
        else:
            texts.append(contents([block], where))
    said: dict[str, Any] = {"role": role, "content": "".join(texts)}
    if calls:
        said["tool_calls"] = calls
    return [*results, *([said] if texts or calls else [])]


def _tools(fields: Fields) -> list[Mapping[str, Any]]:
    """Tools in OpenAI's form."""
    choice = fields.section("tool_choice") or {"type": "auto"}
    if choice.get("type") not in ("auto", "none"):
        raise unfit("tool_choice.type is neither auto nor none, the only ones that are supported.", "tool_choice")
    found: list[Mapping[str, Any]] = []
    for number, tool in enumerate(fields.rows("tools") or ()):
        if not isinstance(tool, Mapping) or not isinstance(tool.get("name"), str):
            raise unfit(f"tools.{number} is not a tool with a name.", f"tools.{number}")
        function = {"name": tool["name"], "description": tool.get("description", "")}
        found.append({"type": "function", "function": {**function, "parameters": tool.get("input_schema", {})}})
    return [] if choice["type"] == "none" else found


class MessageForm(Form):
    """Answers as messages."""

    prefix = "msg_"

    def whole(self, answers: Sequence[Sequence[Delta]], usage: Usage) -> dict[str, Any]:
        deltas = answers[0]
        blocks: list[dict[str, Any]] = []
        if text := "".join(delta.text for delta in deltas):
            blocks.append({"type": "text", "text": text})
        blocks += [_tool_use(call) for delta in deltas for call in delta.calls]
        return {**self._message(usage.prompt, usage.completion), "content": blocks, **_reason(deltas[-1])}

    def begin(self, usage: Usage) -> list[bytes]:
        message = {**self._message(usage.prompt, 0), "stop_reason": None, "stop_sequence": None}
        return [event({"type": "message_start", "message": message}, "message_start"), *self._open_text()]

    def add(self, delta: Delta) -> list[bytes]:
        events = []
        if delta.text:
            change = {"type": "text_delta", "text": delta.text}
            events.append(event({"type": "content_block_delta", "index": 0, "delta": change}, "content_block_delta"))
        if delta.finish:
            events.append(_stop(0))
            for place, call in enumerate(delta.calls, 1):
                events += _tool_events(place, _tool_use(call))
            self._reason = _reason(delta)
        return events

    def end(self, usage: Usage) -> list[bytes]:
        last = {
            "type": "message_delta",
            "delta": self._reason,
            "usage": {"input_tokens": usage.prompt, "output_tokens": usage.completion},
        }
        return [event(last, "message_delta"), event({"type": "message_stop"}, "message_stop")]

    def fail(self, refusal: Refusal) -> list[bytes]:
        return [event(refusal.anthropic(), "error")]

    def _message(self, prompt: int, completion: int) -> dict[str, Any]:
        usage = {"input_tokens": prompt, "output_tokens": completion}
        message = {"id": self.id, "type": "message", "role": "assistant", "model": self._common["model"], "content": []}
        return {**message, "usage": usage, "system_fingerprint": self._common["system_fingerprint"]}

    def _open_text(self) -> list[bytes]:
        block = {"type": "text", "text": ""}
        start = {"type": "content_block_start", "index": 0, "content_block": block}
        return [event(start, "content_block_start")]


def _reason(delta: Delta) -> dict[str, Any]:
    if delta.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": delta.stop}
    return {"stop_reason": REASONS[delta.finish or "stop"], "stop_sequence": None}


def _tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": json.loads(function["arguments"])}


def _tool_events(place: int, block: Mapping[str, Any]) -> list[bytes]:
    start = {"type": "content_block_start", "index": place, "content_block": {**block, "input": {}}}
    change = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    delta = {"type": "content_block_delta", "index": place, "delta": change}
    return [event(start, "content_block_start"), event(delta, "content_block_delta"), _stop(place)]


def _stop(place: int) -> bytes:
    return event({"type": "content_block_stop", "index": place}, "content_block_stop")
