"""Instruction and preference rows from external sources, validated before anything trains on them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from storage.errors import BadDocument
from tasks.download.sources.rows import columns_of

KEYS = {  # of a row, by its role, as an error says them
    "instructions": "messages, or instruction, output and perhaps input",
    "preferences": "prompt, chosen and rejected",
}
ROLES = ("system", "user", "assistant")


def instruction(row: dict[str, Any], source: str) -> dict[str, Any]:
    """A row `{"messages"}` or `{"instruction", "input"?, "output"}` as a conversation. Raises BadDocument, with
    `columns` for a row that has neither's keys."""
    if "messages" in row:
        messages = _messages(row["messages"])
    elif "output" not in row or not {"instruction", "input"} & row.keys():
        raise BadDocument("no_text", columns=columns_of(row))
    else:
        parts = [part for part in (row.get("instruction"), row.get("input")) if part]
        if not all(isinstance(part, str) for part in parts):
            raise BadDocument("no_text")
        question = "\n".join(parts)
        messages = _messages(
            [{"role": "user", "content": question}, {"role": "assistant", "content": row.get("output")}]
        )
    if messages[-1]["role"] != "assistant":
        raise BadDocument("no_answer")
    return {"id": _identity(messages), "source": source, "messages": messages}


def preference(row: dict[str, Any], source: str) -> dict[str, Any]:
    """A row `{"prompt", "chosen", "rejected"}`, each a string or messages, whose answers end with the assistant's
    turn. Raises BadDocument, with `columns` for a row that lacks one of these keys.

    If an answer starts with the prompt, being a whole conversation, the prompt is removed.
    """
    if not {"prompt", "chosen", "rejected"} <= row.keys():
        raise BadDocument("no_messages", columns=columns_of(row))
    prompt = _messages(_as_messages(row.get("prompt"), "user"))
    chosen, rejected = (_without(prompt, row.get(name)) for name in ("chosen", "rejected"))
    if any(answer[-1]["role"] != "assistant" for answer in (chosen, rejected)):
        raise BadDocument("no_answer")
    if chosen == rejected:
        raise BadDocument("equal_answers")
    identity = _identity([*prompt, *chosen, *rejected])
    return {"id": identity, "source": source, "prompt": prompt, "chosen": chosen, "rejected": rejected}


def _without(prompt: list[dict[str, str]], value: Any) -> list[dict[str, str]]:
    answer = _messages(_as_messages(value, "assistant"))
    repeated = answer[: len(prompt)] == prompt
    return _messages(answer[len(prompt) :]) if repeated else answer


def _as_messages(value: Any, role: str) -> Any:
    return [{"role": role, "content": value}] if isinstance(value, str) else value


def _messages(value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise BadDocument("no_messages")
    for message in value:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise BadDocument("unknown_role")
        content = message.get("content")
        if not isinstance(content, str):
            raise BadDocument("no_text")
        if not content.strip():
            raise BadDocument("empty")
        if "\0" in content:
            raise BadDocument("nul")
        try:
            content.encode()
        except UnicodeEncodeError as error:
            raise BadDocument("lone_surrogate") from error
    return [{"role": message["role"], "content": message["content"]} for message in value]


def _identity(messages: list[dict[str, str]]) -> str:
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()[:32]
