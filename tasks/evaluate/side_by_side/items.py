"""The results of a comparison of two models, prompt by prompt, by any judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage.errors import ConfigError

Row = Mapping[str, Any]
ANSWERS = "answers.jsonl"  # the file of the stage `answers`


@dataclass(frozen=True)
class Item:
    """A pair of answers to a prompt: `winner` is 1 if the first is better, 0 if the second is, 0.5 for a tie. Lengths
    are in characters."""

    id: str
    winner: float
    first_length: int
    second_length: int


def paired(first: Sequence[Row], second: Sequence[Row]) -> list[tuple[Row, Row]]:
    """The answers of two models to the same prompts, sample by sample. Raises ConfigError if the prompts differ."""
    asked = [[(row["id"], row["sample"], row["prompt"]) for row in rows] for rows in (first, second)]
    if asked[0] != asked[1]:
        raise ConfigError("Two models answered different prompts.", "Make their answers again: --refresh answers.")
    return list(zip(first, second, strict=True))


def item_of(first: Row, second: Row, winner: float) -> Item:
    """The item of two answers."""
    return Item(str(first["id"]), winner, len(first["answer"]), len(second["answer"]))


def plain_verdict(first: Row, second: Row) -> float | None:
    """The winner if no judge is needed: equal answers tie, and an empty one loses. None if a judge is needed."""
    one, other = first["answer"], second["answer"]
    if one == other:
        return 0.5
    return None if one and other else float(bool(one))


def refused(first: Row, second: Row) -> bool:
    """Whether an endpoint refused the prompt, so that no comparison is possible."""
    return "refused" in (first["fault"], second["fault"])


def of_rewards(first: Sequence[Row], second: Sequence[Row], rewards: Sequence[Sequence[float]]) -> list[Item]:
    """The items of two models by the rewards of their answers, where the higher one wins. Prompts that an endpoint
    refused are left out."""
    return [
        item_of(one, other, 0.5 if one["answer"] == other["answer"] or a == b else float(a > b))
        for (one, other), a, b in zip(paired(first, second), *rewards, strict=True)
        if not refused(one, other)
    ]


def of_judgements(rows: Sequence[Row]) -> list[Item]:
    """The items of the stage `judgements` that have a winner."""
    return [
        Item(row["id"], float(row["winner"]), row["first_length"], row["second_length"])
        for row in rows
        if row["winner"] is not None
    ]
