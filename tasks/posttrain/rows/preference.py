"""Preferences: a prompt with a preferred and a rejected answer, in parts, or as whole conversations for a judge.

A rendered prompt must be a prefix of the rendered conversation. If not, the loss would fall on the wrong tokens, so the
pair is dropped.
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
    """The ids of the prompt, then those that each answer adds to it. Raises Dropped."""
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


def render_judged(row: Row, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Row:
    """The messages of a row, once both answers are known to fit and to continue the prompt, with `chosen_ids` and
    `rejected_ids` of the whole conversations, as `Judge` reads them."""
    answer_ids(row, names := ("chosen", "rejected"), tokenizer, max_length)
    if row["chosen"] == row["rejected"]:
        raise Dropped("equal_answers")
    ids = {f"{name}_ids": render(tokenizer, [*row["prompt"], *row[name]])["input_ids"] for name in names}
    return {"prompt": row["prompt"], **{name: row[name] for name in names}, **ids}


# Prompts bear no loss in either term, so the share says nothing here
PREFERENCE = RowForm(render_preference, lambda rows: 1.0)
JUDGED = RowForm(render_judged, lambda rows: 1.0)
