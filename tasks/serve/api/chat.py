"""OpenAI's `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.serve.api.errors import Refusal, unfit
from tasks.serve.api.fields import IGNORED, MOST_LOGPROBS, Fields, contents, parse, sampling, text_of
from tasks.serve.api.stream import Form, event
from tasks.serve.ask import Ask, Conversation, Delta, Usage
from tasks.serve.engines.protocol import TokenChoice

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def read(body: Mapping[str, Any], *, most_messages: int, most_answers: int) -> Ask:
    """The request of a body. Raises Refusal, which names the field."""
    fields = Fields(body, (*IGNORED, "parallel_tool_calls"))
    model = fields.text("model", "") or ""
    messages = _messages(fields.rows("messages"), most_messages)
    limit = fields.whole("max_tokens", 1, 1 << 30)
    limit = fields.whole("max_completion_tokens", 1, 1 << 30, limit)
    wanted = fields.flag("logprobs")
    top = fields.whole("top_logprobs", 0, MOST_LOGPROBS)
    if top is not None and not wanted:
        raise unfit("top_logprobs needs logprobs: true.", "top_logprobs")
    stream, options = fields.flag("stream"), fields.section("stream_options")
    ask = Ask(
        model,
        Conversation(messages, _tools(fields)),
        sampling(fields, max_tokens=limit, logprobs=(top or 0) if wanted else None),
        fields.whole("n", 1, most_answers, 1) or 1,
        stream,
        include_usage(options, stream),
    )
    fields.end()
    return ask


def include_usage(options: Mapping[str, Any] | None, stream: bool) -> bool:
    """Whether a stream ends with the numbers of tokens."""
    if options is None:
        return False
    if not stream:
        raise unfit("stream_options needs stream: true.", "stream_options")
    fields = Fields(options, ("include_obfuscation",))
    wanted = fields.flag("include_usage")
    fields.end()
    return wanted


def _messages(rows: Sequence[Any] | None, most: int) -> list[dict[str, Any]]:
    if not rows:
        raise unfit("messages is missing or empty.", "messages")
    if len(rows) > most:
        raise unfit(f"messages has {len(rows):,} messages, but at most {most:,} are allowed.", "messages")
    return [_message(row, f"messages.{number}") for number, row in enumerate(rows)]


def _message(row: Any, name: str) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise unfit(f"{name} is not an object.", name)
    role = row.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise unfit(f"{name}.role is none of {', '.join(ROLES)}.", f"{name}.role")
    known = {"role", "content", "name", "tool_calls", "tool_call_id", "refusal"}
    if unknown := sorted(str(field) for field, value in row.items() if field not in known and value is not None):
        raise unfit(f"{name} has the field {unknown[0][:60]!r}, which is not supported.", name)
    message: dict[str, Any] = {"role": ROLES[role]}
    calls = row.get("tool_calls")
    if row.get("content") is None and role == "assistant" and calls:
        message["content"] = ""
    else:
        message["content"] = contents(row.get("content"), f"{name}.content")
    if calls:
        if not isinstance(calls, list) or not all(map(_is_of_function, calls)):
            raise unfit(f"{name}.tool_calls is not a list of calls of functions.", f"{name}.tool_calls")
        message["tool_calls"] = [_call(call, f"{name}.tool_calls.{number}") for number, call in enumerate(calls)]
    for further in ("name", "tool_call_id") if role == "tool" else ():
        if row.get(further) is not None:
            message[further] = text_of(row[further], f"{name}.{further}")
    return message


def _call(call: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A call with its arguments as an object, which templates write as JSON."""
    function = call["function"]
    given = {} if function.get("arguments") in (None, "") else function["arguments"]
    if isinstance(given, str):
        try:
            given = parse(given.encode())
        except Refusal:
            given = None
    if not isinstance(given, Mapping):
        raise unfit(f"{name}.function.arguments is not a JSON object.", f"{name}.function.arguments")
    return {**call, "function": {**function, "arguments": given}}


def _is_of_function(value: Any) -> bool:
    """Whether this is a tool, or a call of one: it has a function with a name."""
    function = value.get("function") if isinstance(value, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def _tools(fields: Fields) -> list[Mapping[str, Any]]:
    tools, choice = fields.rows("tools") or [], fields.raw("tool_choice")
    for number, tool in enumerate(tools):
        if not _is_of_function(tool):
            raise unfit(f"tools.{number} is not a function with a name.", f"tools.{number}")
    if choice not in (None, "auto", "none"):
        raise unfit("tool_choice is neither auto nor none, the only ones that are supported.", "tool_choice")
    return [] if choice == "none" else tools


class ChatForm(Form):
    """Answers as chat completions, with `system_fingerprint` = the digest of the release."""

    def whole(self, answers: Sequence[Sequence[Delta]], usage: Usage) -> dict[str, Any]:
        choices = []
        for number, deltas in enumerate(answers):
            calls = [call for delta in deltas for call in delta.calls]
            text = "".join(delta.text for delta in deltas)
            message: dict[str, Any] = {"role": "assistant", "content": text or None if calls else text}
            if calls:
                message["tool_calls"] = calls
            choice = {"index": number, "message": message, "finish_reason": deltas[-1].finish, "logprobs": None}
            if self.ask.sampling.logprobs is not None:
                choice["logprobs"] = _logprobs([one for delta in deltas for one in delta.choices])
            choices.append(choice)
        return {**self._head("chat.completion"), "choices": choices, "usage": usage.openai()}

    def begin(self, usage: Usage) -> list[bytes]:
        return [
            self._chunk({"index": number, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})
            for number in range(self.ask.answers)
        ]

    def add(self, delta: Delta) -> list[bytes]:
        chunks = []
        if delta.text or delta.choices or delta.calls:
            added: dict[str, Any] = {"content": delta.text} if delta.text or not delta.calls else {}
            if delta.calls:
                added["tool_calls"] = [{"index": place, **call} for place, call in enumerate(delta.calls)]
            choice: dict[str, Any] = {"index": delta.answer, "delta": added, "finish_reason": None}
            if self.ask.sampling.logprobs is not None:
                choice["logprobs"] = _logprobs(delta.choices)
            chunks.append(self._chunk(choice))
        if delta.finish:
            chunks.append(self._chunk({"index": delta.answer, "delta": {}, "finish_reason": delta.finish}))
        return chunks

    def end(self, usage: Usage) -> list[bytes]:
        if not self.ask.usage:
            return [b"data: [DONE]\n\n"]
        last = {**self._head("chat.completion.chunk"), "choices": [], "usage": usage.openai()}
        return [event(last), b"data: [DONE]\n\n"]

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return event({**chunk, "usage": None} if self.ask.usage else chunk)


def _logprobs(choices: Sequence[TokenChoice]) -> dict[str, Any]:
    return {
        "content": [
            {**_token(one.text, one.logprob), "top_logprobs": [_token(*other) for other in one.top]} for one in choices
        ],
        "refusal": None,
    }


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
