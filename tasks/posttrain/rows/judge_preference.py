"""Preferences for a judge, which reads whole conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.conversation import render
from tasks.posttrain.rows.form import Dropped, Row, RowForm
from tasks.posttrain.rows.preference import answer_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def render_judged(row: Row, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Row:
    """The messages of a row, once both answers are known to fit and to continue the prompt, with `chosen_ids` and
    `rejected_ids` of the whole conversations, as `Judge` reads them."""
    answer_ids(row, names := ("chosen", "rejected"), tokenizer, max_length)
    if row["chosen"] == row["rejected"]:
        raise Dropped("equal_answers")
    ids = {f"{name}_ids": render(tokenizer, [*row["prompt"], *row[name]])["input_ids"] for name in names}
    return {"prompt": row["prompt"], **{name: row[name] for name in names}, **ids}


JUDGED = RowForm(render_judged, lambda rows: 1.0)
