"""Preferences: a prompt with a preferred and a rejected answer.

A rendered prompt must be a prefix of the rendered conversation: where it is not, the loss would fall on the wrong
tokens, and the pair is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from models.conversation import NOT_A_PREFIX, TemplateFaultError, begins_with, closed, render
from tasks.posttrain.rows.form import OVERLONG, Dropped, Message, Row, RowForm, refuse_special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def render_preference(row: Row, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Row:
    """`prompt_ids`, `chosen_ids` and `rejected_ids` as TRL's trainers tokenize them, with the `id` of the row, once
    both answers are known to fit and to continue the prompt."""
    prompt, chosen, rejected = answer_ids(row, ("chosen", "rejected"), tokenizer, max_length)
    if row["chosen"] == row["rejected"]:
        raise Dropped("equal_answers")
    return {"id": row["id"], "prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}


def answer_ids(row: Row, names: Sequence[str], tokenizer: PreTrainedTokenizerFast, max_length: int) -> list[list[int]]:
    """The ids of the prompt, then those that each of the answers adds to it. Raises Dropped."""
    prompt: list[Message] = row["prompt"]
    refuse_special_tokens([*prompt, *(message for name in names for message in row[name])], tokenizer)
    try:
        prompt_ids = render(tokenizer, prompt, add_generation_prompt=True)["input_ids"]
        answers = [closed(tokenizer, render(tokenizer, [*prompt, *row[name]])["input_ids"]) for name in names]
    except TemplateFaultError as fault:
        raise Dropped(str(fault)) from fault
    if not all(begins_with(ids, prompt_ids) for ids in answers):
        raise Dropped(NOT_A_PREFIX)
    if max(map(len, answers)) > max_length:
        raise Dropped(OVERLONG)
    return [prompt_ids, *(ids[len(prompt_ids) :] for ids in answers)]


# Prompts bear no loss in either term, so the share says nothing here
PREFERENCE = RowForm(render_preference, lambda rows: 1.0)
