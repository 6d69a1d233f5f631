"""Pairs become token ids, rendered by the one chat template; what can't be used is dropped and counted.

Dropped are pairs longer than the model can see (cutting would teach it to stop mid-sentence), pairs whose text spells
a special token (it would be parsed as one), and those without a token to learn from. Checked is that a rendered prompt
is a prefix of the rendered conversation: where it is not, the loss would fall on the wrong tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import EmptyOutput, SourceError, TokenizerMismatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Row = dict[str, Any]
Message = dict[str, str]
IGNORED = -100


class Dropped(Exception):
    """A pair can't be used, and why. Counted, never raised out of this module."""


def read_rows(paths: Iterable[Path]) -> Iterator[Row]:
    """The rows of JSON Lines files, in order. Raises SourceError for a line that is not JSON."""
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise SourceError(
                    f"{path.name}, line {number}, is not JSON: {error}.", "Make the artifact anew."
                ) from error


def prepare(
    rows: Iterable[Row], render: Callable[[Row], Row], *, validation_share: float, max_dropped_share: float
) -> tuple[list[Row], list[Row], Counter[str]]:
    """Rendered rows for training and for validation, and how many were dropped by reason.

    Raises EmptyOutput when none is left to train on, or when more than the allowed share was dropped.
    """
    train: list[Row] = []
    validation: list[Row] = []
    dropped: Counter[str] = Counter()
    for row in rows:
        try:
            rendered = render(row)
        except Dropped as reason:
            dropped[str(reason)] += 1
            continue
        (validation if _held_out(row["id"], validation_share) else train).append(rendered)
    total = len(train) + len(validation) + dropped.total()
    if not total:
        raise EmptyOutput("There are no pairs to train on.", "Give download a source of that role.")
    if not train or dropped.total() > max_dropped_share * total:
        raise EmptyOutput(
            f"Of {total:,} pairs {dropped.total():,} can't be used ({dict(dropped)}); {len(train):,} are left.",
            "Raise max_length (and the model's context), give shorter pairs, or raise max_dropped_share.",
        )
    return train, validation, dropped


def render_instruction(row: Row, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Row:
    """`input_ids` and `labels` of a conversation: the assistant's words and the mark that ends them are learned."""
    messages: list[Message] = row["messages"]
    _refuse_special(messages, tokenizer)
    rendered = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    ids, mask = rendered["input_ids"], rendered["assistant_masks"]
    if len(ids) > max_length:
        raise Dropped("overlong")
    if not any(mask):
        raise Dropped("no_supervised_token")
    return {"input_ids": ids, "labels": [id if learned else IGNORED for id, learned in zip(ids, mask, strict=True)]}


def render_preference(row: Row, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Row:
    """The row as TRL takes it, once both answers are known to fit and to continue the prompt."""
    prompt: list[Message] = row["prompt"]
    _refuse_special([*prompt, *row["chosen"], *row["rejected"]], tokenizer)
    prompt_ids = _ids(tokenizer, prompt, add_generation_prompt=True)
    for answer in (row["chosen"], row["rejected"]):
        ids = _ids(tokenizer, [*prompt, *answer])
        if ids[: len(prompt_ids)] != prompt_ids:
            raise TokenizerMismatch(
                f"The chat template renders the prompt of pair {row['id']} otherwise alone than with its answer.",
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


def _refuse_special(messages: Iterable[Message], tokenizer: PreTrainedTokenizerFast) -> None:
    special_tokens = tokenizer.all_special_tokens  # those reserved for later too
    if any(token in message["content"] for message in messages for token in special_tokens):
        raise Dropped("special_token_in_text")


def _held_out(row_id: str, share: float) -> bool:
    drawn = hashlib.sha256(f"pair {row_id}".encode()).digest()
    return int.from_bytes(drawn[:8]) < share * 2.0**64
