"""Labelled rows: a prompt with one answer, and whether that is desirable. A preference is two of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tasks.posttrain.rows.form import Row, RowForm
from tasks.posttrain.rows.preference import answer_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def render_labelled(row: Row, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Row:
    """`prompt_ids`, `completion_ids` and `label`, once the answer is known to fit and to continue the prompt."""
    prompt, answer = answer_ids(row, ("completion",), tokenizer, max_length)
    return {"id": row["id"], "prompt_ids": prompt, "completion_ids": answer, "label": row["label"]}


def labelled_of(row: Row) -> Iterator[Row]:
    """A labelled row as it is, or the two answers of a preference: the preferred one as desirable, the rejected one as
    not. Both get the id of the pair, so that they are held out together."""
    if "completion" in row:
        yield row
        return
    shared: Row = {name: row[name] for name in ("id", "source", "prompt") if name in row}
    for name, desirable in (("chosen", True), ("rejected", False)):
        yield {**shared, "completion": row[name], "label": desirable}


LABELLED = RowForm(render_labelled, lambda rows: 1.0, split=labelled_of)
