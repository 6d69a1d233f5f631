"""Row forms: the type of a form, and the code that forms share.

A form renders a row with the one chat template. It drops rows longer than the model's context (truncation would teach
the model to stop mid-sentence), rows whose text spells a special token (it would be parsed as one), rows that the
template refuses, rows whose prompt is rendered differently with and without the answer, and rows without a token to
learn from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from models.conversation import special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

OVERLONG = "overlong"  # the reason of a row that is longer than the context

Row = dict[str, Any]
Message = dict[str, str]


class Dropped(Exception):
    """Why a row can't be used. Counted by `prepare`, never raised beyond it."""


@dataclass(frozen=True)
class RowForm:
    """`render(row, tokenizer, max_length)` gives a row as TRL takes it, a list of rows if it was split, or raises
    Dropped.

    `supervised_share(rendered rows)` is the share of tokens that bear loss. `split(row)`, if set, gives the rows of
    this form that a row of another form contains.
    """

    render: Callable[[Row, PreTrainedTokenizerFast, int], Row | list[Row]]
    supervised_share: Callable[[Sequence[Row]], float]
    split: Callable[[Row], Iterable[Row]] | None = None


def mean_tokens(rows: Sequence[Row]) -> float:
    """Mean tokens that a model reads of a rendered row, with the prompt counted once for each answer."""
    lengths = [{name: len(ids) for name, ids in row.items() if name.endswith("_ids")} for row in rows]
    prompts = [ids.pop("prompt_ids", 0) for ids in lengths]
    read = sum(prompt + answer for prompt, ids in zip(prompts, lengths, strict=True) for answer in ids.values())
    return round(read / len(rows), 1) if rows else 0.0


def refuse_special_tokens(messages: Iterable[Message], tokenizer: PreTrainedTokenizerFast) -> None:
    """Raises Dropped if a message's text contains a special token, including reserved ones."""
    known = special_tokens(tokenizer)
    if any(token in message["content"] for message in messages for token in known):
        raise Dropped("special_token_in_text")
