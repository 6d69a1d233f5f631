"""Draws the conversations that a model answers: to get feedback on, or the best of several answers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from tasks.posttrain.rows.prepare import is_held_out, read_rows
from tasks.posttrain.rows.same_rows import digest_as_compared, distinct

Transcript = dict[str, Any]


class Drawing(Protocol):
    """The settings of a draw."""

    @property
    def prompts(self) -> int | None:
        """How many to draw, or None for all."""

    @property
    def validation_share(self) -> float:
        """The share that is held out of all links."""

    @property
    def seed(self) -> int:
        """The seed of the draw."""


def draw_prompts(config: Drawing, files: Iterable[Path]) -> tuple[list[Transcript], Counter[str]]:
    """Conversations to be answered in place of their last answer, in an order drawn from the seed and their ids, and
    how many are left out by reason. A prompt that any held-out conversation has is left out. Of other conversations
    with the same prompt, the first is taken."""
    left_out: Counter[str] = Counter()
    rows = [(row, digest_as_compared(row["messages"][:-1])) for row in distinct(read_rows(files), left_out)]
    known = {digest for row, digest in rows if is_held_out(row["id"], config.validation_share)}
    drawn: list[Transcript] = []
    for row, digest in sorted(rows, key=lambda one: seed_of(one[0]["id"], config.seed)):
        if is_held_out(row["id"], config.validation_share):
            left_out["held_out"] += 1
        elif digest in known:
            left_out["same_prompt"] += 1
        elif len(drawn) == config.prompts:
            left_out["not_drawn"] += 1
        else:
            known.add(digest)
            drawn.append(row)
    return drawn, left_out


def seed_of(row_id: str, seed: int) -> int:
    """A seed of 31 bits, which every server accepts, from a row's id and the profile's seed."""
    return int.from_bytes(hashlib.sha256(f"feedback {seed} {row_id}".encode()).digest()[:4]) >> 1


def pair_id(row_id: str) -> str:
    """The id of a row's pair: a new one, so that a share of the pairs is held out by their ids too."""
    return hashlib.sha256(f"feedback {row_id}".encode()).hexdigest()[:32]
