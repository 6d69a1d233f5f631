"""Whoever is asked: the model of the chain, or an endpoint. Both answer many conversations at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from models.conversation import Messages

Fault = Literal["", "empty", "unfinished", "overlong", "refused", "unclear"]


@dataclass(frozen=True)
class Reply:
    """What was said, and why it is of no use: nothing, cut at the most tokens, too long a prompt, refused by the
    server, or neither A nor B."""

    text: str
    fault: Fault = ""

    @classmethod
    def of(cls, text: str, *, finished: bool) -> Reply:
        """One that was cut is of no use: it would teach to stop in the middle of a sentence."""
        text = text.strip()
        return cls(text, "" if text and finished else "unfinished" if text else "empty")


class Speaker(Protocol):
    """One who answers, and judges."""

    def say(self, conversations: Sequence[Messages]) -> list[Reply]:
        """The most likely answer to each."""

    def sample(self, conversations: Sequence[Messages], number: int, seeds: Sequence[int]) -> list[list[Reply]]:
        """So many answers to each, which depend on its seed."""

    def compare(self, questions: Sequence[Messages]) -> list[Reply]:
        """A or B for each question that is to be answered so."""
