"""Instructions: conversations, of which the assistant's tokens bear loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from models.conversation import TemplateFaultError, render_answers
from tasks.posttrain.rows.form import OVERLONG, Dropped, Message, Row, RowForm, refuse_special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def render_instruction(row: Row, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Row:
    """`input_ids` and `labels` of a conversation: the assistant's words and the token that ends them are learned."""
    from models.kernels.cross_entropy import IGNORED

    messages: list[Message] = row["messages"]
    refuse_special_tokens(messages, tokenizer)
    try:
        ids, mask = render_answers(tokenizer, messages)
    except TemplateFaultError as fault:
        raise Dropped(str(fault)) from fault
    if len(ids) > max_length:
        raise Dropped(OVERLONG)
    if not any(mask):
        raise Dropped("no_supervised_token")
    return {"input_ids": ids, "labels": [id if learned else IGNORED for id, learned in zip(ids, mask, strict=True)]}


def _supervised_share(rows: Sequence[Row]) -> float:
    from models.kernels.cross_entropy import IGNORED

    learned = sum(label != IGNORED for row in rows for label in row["labels"])
    return learned / sum(len(row["labels"]) for row in rows)


INSTRUCTION = RowForm(render_instruction, _supervised_share)
