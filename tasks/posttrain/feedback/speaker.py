"""The protocol of whoever answers: the chain's model, or an endpoint. Both answer many conversations at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from models.conversation import Messages
from tasks.endpoint.reply import Reply


class Speaker(Protocol):
    """A model that answers and judges."""

    def say(self, conversations: Sequence[Messages]) -> list[Reply]:
        """The most likely answer to each conversation."""

    def sample(self, conversations: Sequence[Messages], number: int, seeds: Sequence[int]) -> list[list[Reply]]:
        """`number` answers to each conversation, drawn with its seed."""

    def compare(self, questions: Sequence[Messages]) -> list[Reply]:
        """A or B for each question of `ask.comparison`."""
