"""Preferences: a prompt with a preferred and a rejected answer.

A rendered prompt must be a prefix of the rendered conversation: where it is not, the loss would fall on the wrong
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from storage.errors import TokenizerMismatch
from tasks.posttrain.rows.form import Dropped, Message, Row, RowForm, refuse_special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def render_preference(row: Row, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Row:
    """The row as TRL takes it, once both answers are known to fit and to continue the prompt."""
    prompt: list[Message] = row["prompt"]
    refuse_special_tokens([*prompt, *row["chosen"], *row["rejected"]], tokenizer)
    prompt_ids = _ids(tokenizer, prompt, add_generation_prompt=True)
    for answer in (row["chosen"], row["rejected"]):
        ids = _ids(tokenizer, [*prompt, *answer])
        if ids[: len(prompt_ids)] != prompt_ids:
            raise TokenizerMismatch(
                f"The chat template renders the prompt of pair {row['id']} differently alone than with its answer.",
                "This is a defect of the template: a prompt must be a prefix of its conversation.",
            )
        if len(ids) > max_length:
            raise Dropped("overlong")
    if row["chosen"] == row["rejected"]:
        raise Dropped("equal_answers")
    return {"prompt": prompt, "chosen": row["chosen"], "rejected": row["rejected"]}


def _ids(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], **options: bool) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(list(messages), return_dict=True, **options)["input_ids"]
    return ids


# Prompts bear no loss in either term, so the share says nothing here
PREFERENCE = RowForm(render_preference, lambda rows: 1.0)
