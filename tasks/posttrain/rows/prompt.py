"""Prompts with a reference: conversations whose last answer is what sampled answers are compared with.

Other fields of a row are for rewards. They stay JSON, as a table's columns would have to agree in their types.

The length of a row is that of its prompt. Callers subtract the room for an answer from `max_length`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from models.conversation import TemplateFaultError, render
from tasks.posttrain.rows.form import OVERLONG, Dropped, Message, Row, RowForm, refuse_special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Tool = Mapping[str, Any]  # a JSON schema of a function
OURS = ("id", "source", "messages")


def render_prompt(row: Row, tokenizer: PreTrainedTokenizerFast, max_length: int, tools: Sequence[Tool] = ()) -> Row:
    """`prompt`, as messages, `reference`, the text of the answer to it, and `fields`, the others of the row as JSON.
    The prompt's length is that with the tools that it describes."""
    messages: list[Message] = row["messages"]
    if not messages or messages[-1]["role"] != "assistant" or not messages[-1]["content"].strip():
        raise Dropped("no_reference")
    refuse_special_tokens(messages, tokenizer)
    prompt = messages[:-1]
    try:
        shown = {"tools": [*tools]} if tools else {}
        ids = render(tokenizer, prompt, add_generation_prompt=True, **shown)["input_ids"]
    except TemplateFaultError as fault:
        raise Dropped(str(fault)) from fault
    if len(ids) > max_length:
        raise Dropped(OVERLONG)
    fields = {name: value for name, value in row.items() if name not in OURS}
    return {"prompt": prompt, "reference": messages[-1]["content"], "fields": json.dumps(fields)}


# All tokens that bear loss are yet to be sampled, so the share says nothing here
PROMPT = RowForm(render_prompt, lambda rows: 1.0)


def prompts_with(tools: Sequence[Tool]) -> RowForm:
    """The form of prompts that describe these tools."""
    return replace(PROMPT, render=partial(render_prompt, tools=tools)) if tools else PROMPT
