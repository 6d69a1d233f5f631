"""Forms that are lists of turns: `messages` as of OpenAI, `conversations` as of ShareGPT and LLaMA-Factory."""

from __future__ import annotations

import functools

from tasks.download.pairs.form import Form, Message, Values
from tasks.download.pairs.texts import system_of
from tasks.download.pairs.turns import read_turns, with_tools


def chat(row: Values, key: str) -> list[Message]:
    """The turns of the list under `key`, after the row's own system prompt."""
    turns, system = read_turns(row[key], key), system_of(row)
    return with_tools(turns if system == turns[:1] else [*system, *turns], row)


MESSAGES = Form("messages", (("messages",),), functools.partial(chat, key="messages"))
SHAREGPT = Form("sharegpt", (("conversations",),), functools.partial(chat, key="conversations"))
