"""Preferences for a judge, which reads whole conversations: TRL's RewardTrainer renders them itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.posttrain.rows.form import Dropped, Row, RowForm
from tasks.posttrain.rows.preference import answer_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def render_judged(row: Row, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Row:
    """The messages of a row, once both answers are known to fit and to continue the prompt."""
    answer_ids(row, ("chosen", "rejected"), tokenizer, max_length)
    if row["chosen"] == row["rejected"]:
        raise Dropped("equal_answers")
    return {name: row[name] for name in ("prompt", "chosen", "rejected")}


JUDGED = RowForm(render_judged, lambda rows: 1.0)
