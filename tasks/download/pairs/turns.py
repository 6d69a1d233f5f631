"""Lists of turns, as `role` and `content` (OpenAI) or as `from` and `value` (ShareGPT), and the forms that are one.

The form that is trained on has three roles and only text. So a tool call becomes text of the assistant, and a tool's
result a turn of the user, both in the tags that Hermes and Qwen use. The available tools end the system prompt.
Results of calls made at once are one turn. Rows with anything but text, such as an image, are refused.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from tasks.download.pairs.form import Form, Message, Values, bad
from tasks.download.pairs.texts import as_json, kind_of, refuse_media, system_of, text_of

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "call",
    "tool_call": "call",
}
STYLES = (("role", "content"), ("from", "value"))


def read_turns(value: Any, key: str) -> list[Message]:
    """The turns of a list. Raises BadDocument, naming the turn and its key."""
    if not isinstance(value, list):
        raise bad("no_messages", f"{key} is {kind_of(value)}, not a list of turns")
    if not value:
        raise bad("no_messages", f"{key} is an empty list")
    found = [_read(turn, f"{key}[{number}]") for number, turn in enumerate(value)]
    merged: list[Message] = []
    for turn in found:
        if turn["role"] == "tool" and merged and merged[-1]["role"] == "tool":
            merged[-1]["content"] += f"\n{turn['content']}"
        else:
            merged.append(turn)
    return [_message(turn) for turn in merged]


def with_tools(turns: list[Message], row: Values) -> list[Message]:
    """The turns, with the tools that the row offers at the end of the system prompt."""
    tools = row.get("tools")
    tools = _parsed(tools) if isinstance(tools, str) else tools
    if not tools:
        return turns
    if not isinstance(tools, list | dict | str):
        raise bad("no_text", f"tools is {kind_of(tools)}, not a list")
    listed = tools if isinstance(tools, list) else [tools]
    offered = "\n".join(tool if isinstance(tool, str) else as_json(tool, "tools") for tool in listed)
    block = text_of(f"<tools>\n{offered}\n</tools>", "tools")
    if turns[0]["role"] == "system":
        return [{"role": "system", "content": f"{turns[0]['content']}\n\n{block}"}, *turns[1:]]
    return [{"role": "system", "content": block}, *turns]


def _read(turn: Any, key: str) -> Message:
    """A turn, whose role may still be `tool`."""
    if not isinstance(turn, dict):
        raise bad("unknown_role", f"{key} is {kind_of(turn)}, not a turn")
    refuse_media(turn, f"{key}.")
    styles = [style for style in STYLES if turn.get(style[0]) is not None]
    if len(styles) > 1:
        raise bad("ambiguous_form", f"{key} has a role and a from")
    who, what = styles[0] if styles else STYLES[0]
    named = turn.get(who)
    role = ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        raise bad("unknown_role", f"{key}.{who} is none of {', '.join(sorted(ROLES))}")
    if role in ("assistant", "call") and turn.get("weight") == 0:
        raise bad("weight", f"{key}.weight is 0, but every turn of the assistant is trained on")
    calls = _calls(turn) if role == "assistant" else []
    text = _text(turn.get(what), f"{key}.{what}", empty=bool(calls))
    if role == "tool":
        return {"role": role, "content": _tagged("tool_response", text)}
    if role == "call":
        return {"role": "assistant", "content": _tagged("tool_call", text)}
    called = [_tagged("tool_call", text_of(_call(call, key), f"{key}.tool_calls")) for call in calls]
    return {"role": role, "content": "\n".join([*([text] if text else []), *called])}


def _text(content: Any, key: str, *, empty: bool) -> str:
    """The text of a turn, whose parts are joined by line feeds. Empty only if `empty`."""
    if empty and (content is None or content == "" or content == []):
        return ""
    if not isinstance(content, list):
        return text_of(content, key)
    if not content:
        raise bad("empty", f"{key} is an empty list")
    texts = []
    for number, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type", "text") != "text":
            raise bad("not_text", f"{key}[{number}] is not a part of type text")
        texts.append(text_of(part.get("text"), f"{key}[{number}].text"))
    return "\n".join(texts)


def _calls(turn: Values) -> list[Any]:
    calls = turn.get("tool_calls") or turn.get("function_call")
    return calls if isinstance(calls, list) else [calls] if calls else []


def _call(call: Any, key: str) -> str:
    """A call as `{"name", "arguments"}`, which OpenAI nests in `function`."""
    called = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(called, dict) or not isinstance(called.get("name"), str):
        raise bad("no_text", f"{key}.tool_calls has a call without a name")
    arguments = called.get("arguments")
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    return as_json({"name": called["name"], "arguments": {} if arguments is None else arguments}, f"{key}.tool_calls")


def _parsed(text: str) -> Any:
    """The value of JSON, or the text itself if it isn't JSON."""
    try:
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        return text


def _tagged(tag: str, text: str) -> str:
    return text if text.lstrip().startswith(f"<{tag}>") else f"<{tag}>\n{text}\n</{tag}>"


def _message(turn: Message) -> Message:
    return {**turn, "role": "user"} if turn["role"] == "tool" else turn


def chat(row: Values, key: str) -> list[Message]:
    """The turns of the list under `key`, after the row's own system prompt."""
    turns, system = read_turns(row[key], key), system_of(row)
    return with_tools(turns if system == turns[:1] else [*system, *turns], row)


MESSAGES = Form("messages", (("messages",),), functools.partial(chat, key="messages"))  # as of OpenAI
SHAREGPT = Form("sharegpt", (("conversations",),), functools.partial(chat, key="conversations"))  # and of LLaMA-Factory
