"""Conversations in which the student answers itself, for on-policy distillation (Agarwal et al. 2024, GKD).

A row's last answer is replaced by one that the student samples. Whether it is, and what is sampled, follows from the
seed, the step and the prompt, so a resumed run has the same answers, over any number of processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.posttrain.rows.form import OVERLONG, Dropped, Row, RowForm
from tasks.posttrain.rows.instruction import INSTRUCTION

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BITS = 32


class OwnAnswers(NamedTuple):
    """Rows with answers of the student's, the tokens of these answers, and how many of them were cut."""

    rows: list[Row]
    lengths: list[int]
    cut: int


def with_room(max_new_tokens: int) -> RowForm:
    """The form of instructions that drops those whose last prompt leaves no room for an answer of so many tokens."""
    return RowForm(partial(_render, room=max_new_tokens), INSTRUCTION.supervised_share)


def _render(row: Row, tokenizer: PreTrainedTokenizerFast, max_length: int, *, room: int) -> Row | list[Row]:
    rendered = INSTRUCTION.render(row, tokenizer, max_length)
    if isinstance(rendered, dict) and prompt_tokens(rendered["labels"]) + room > max_length:
        raise Dropped(OVERLONG)
    return rendered


def prompt_tokens(labels: Sequence[int]) -> int:
    """The tokens before the last answer."""
    from models.kernels.cross_entropy import IGNORED

    place = len(labels)
    while labels[place - 1] == IGNORED:
        place -= 1
    while place and labels[place - 1] != IGNORED:
        place -= 1
    return place


def rows_of(batch: Mapping[str, Any]) -> list[Row]:
    """The rows of a padded batch."""
    lengths = batch["attention_mask"].sum(1).tolist()
    return [
        {name: batch[name][number, :length].tolist() for name in ("input_ids", "labels")}
        for number, length in enumerate(lengths)
    ]


def own_answers(
    model: Any, rows: Sequence[Row], *, share: float, seed: str, ends: Sequence[int], pad: int, max_new_tokens: int
) -> OwnAnswers:
    """The rows of a step, a `share` of them with an answer of the student's. `seed` names the step."""
    from models.kernels.cross_entropy import IGNORED
    from models.runtimes.sampled import sampled

    answered = list(rows)
    prompts = {number: row["input_ids"][: prompt_tokens(row["labels"])] for number, row in enumerate(rows)}
    drawn = {number: _draws(seed, ids) for number, ids in prompts.items()}
    chosen = [number for number, (draw, _) in drawn.items() if draw < share]
    asked, seeds = [prompts[number] for number in chosen], [drawn[number][1] for number in chosen]
    answers = sampled(model, asked, seeds, ends, pad, max_new_tokens)
    for number, prompt, answer in zip(chosen, asked, answers, strict=True):
        answered[number] = {"input_ids": [*prompt, *answer], "labels": [*[IGNORED] * len(prompt), *answer]}
    return OwnAnswers(answered, [len(one) for one in answers], sum(one[-1] not in ends for one in answers))


def _draws(seed: str, prompt: Sequence[int]) -> tuple[float, int]:
    """A number from 0 to 1 that decides whether the student answers, and the seed of its answer."""
    digest = hashlib.sha256(f"on-policy {seed} {' '.join(map(str, prompt))}".encode()).digest()
    return int.from_bytes(digest[:4]) / 2**BITS, int.from_bytes(digest[4:8])
