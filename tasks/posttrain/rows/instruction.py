"""Instructions: conversations in which the assistant's tokens bear loss.

A conversation that is longer than the context can be split between its turns. Every part begins as a conversation does,
with the system prompt, if any, and a turn of the user's. It doesn't contain the turns before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from models.conversation import TemplateFaultError, render, render_answers, turns_of
from tasks.posttrain.rows.form import OVERLONG, Dropped, Message, Row, RowForm, refuse_special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LossOn = Literal["all", "last"]
Overlong = Literal["drop", "split"]


def instructions(loss_on: LossOn, overlong: Overlong) -> RowForm:
    """The form of conversations with the loss on all answers or the last, whose overlong ones are dropped or split."""
    rendered = render_instruction if overlong == "drop" else render_in_parts
    return RowForm(partial(rendered, loss_on=loss_on), _supervised_share)


def render_instruction(
    row: Row, tokenizer: PreTrainedTokenizerFast, max_length: int, *, loss_on: LossOn = "all"
) -> Row:
    """`input_ids` and `labels` of a conversation: the assistant's words and the token that ends them are learned."""
    from models.kernels.cross_entropy import IGNORED

    messages: list[Message] = row["messages"]
    refuse_special_tokens(messages, tokenizer)
    try:
        ids, mask = render_answers(tokenizer, messages, last=loss_on == "last")
    except TemplateFaultError as fault:
        raise Dropped(str(fault)) from fault
    if len(ids) > max_length:
        raise Dropped(OVERLONG)
    if not any(mask):
        raise Dropped("no_supervised_token")
    return {"input_ids": ids, "labels": [id if learned else IGNORED for id, learned in zip(ids, mask, strict=True)]}


def render_in_parts(
    row: Row, tokenizer: PreTrainedTokenizerFast, max_length: int, *, loss_on: LossOn = "all"
) -> Row | list[Row]:
    """As `render_instruction`, but a conversation that is too long becomes several parts, each of as many turns as fit.
    Every answer is in one of them. Raises Dropped if an answer and its question are too long by themselves."""
    try:
        return render_instruction(row, tokenizer, max_length, loss_on=loss_on)
    except Dropped as reason:
        if str(reason) != OVERLONG:
            raise

    def fits(messages: list[Message]) -> bool:
        try:
            whole = len(render(tokenizer, messages)["input_ids"]) + len(turns_of(tokenizer).appended)
            return whole <= max_length
        except TemplateFaultError as fault:
            raise Dropped(str(fault)) from fault

    parts = _parts(row["messages"], fits)
    return [render_instruction({**row, "messages": part}, tokenizer, max_length, loss_on=loss_on) for part in parts]


def with_room(max_new_tokens: int) -> RowForm:
    """The form of instructions that drops those whose last prompt leaves no room for an answer of so many tokens."""

    def rendered(row: Row, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Row:
        found = render_instruction(row, tokenizer, max_length)
        if prompt_tokens(found["labels"]) + max_new_tokens > max_length:
            raise Dropped(OVERLONG)
        return found

    return RowForm(rendered, _supervised_share)


def prompt_tokens(labels: Sequence[int]) -> int:
    """The tokens before the last answer of a rendered conversation."""
    from models.kernels.cross_entropy import IGNORED

    place = len(labels)
    while labels[place - 1] == IGNORED:
        place -= 1
    while place and labels[place - 1] != IGNORED:
        place -= 1
    return place


def _parts(messages: Sequence[Message], fits: Callable[[list[Message]], bool]) -> Iterator[list[Message]]:
    """The messages in parts that fit or are a single exchange, each with the system prompt."""
    system = [message for message in messages[:1] if message["role"] == "system"]
    part = list(system)
    for exchange in _exchanges(messages[len(system) :]):
        if len(part) > len(system) and not fits([*part, *exchange]):
            yield part
            part = list(system)
        part += exchange
    yield part


def _exchanges(messages: Sequence[Message]) -> list[list[Message]]:
    """The user's turns, each with the messages up to the next."""
    exchanges: list[list[Message]] = []
    for message in messages:
        if message["role"] == "user" or not exchanges:
            exchanges.append([])
        exchanges[-1].append(message)
    return exchanges


def _supervised_share(rows: Sequence[Row]) -> float:
    from models.kernels.cross_entropy import IGNORED

    learned = sum(label != IGNORED for row in rows for label in row["labels"])
    return learned / sum(len(row["labels"]) for row in rows)


INSTRUCTION = instructions("all", "drop")
