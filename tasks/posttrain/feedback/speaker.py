"""Whoever is asked: the model of the chain, or an endpoint. Both answer many conversations at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from models.conversation import Messages
from tasks.endpoint.reply import Reply


class Speaker(Protocol):
    """One who answers, and judges."""

    def say(self, conversations: Sequence[Messages]) -> list[Reply]:
        """The most likely answer to each."""

    def sample(self, conversations: Sequence[Messages], number: int, seeds: Sequence[int]) -> list[list[Reply]]:
        """So many answers to each, which depend on its seed."""

    def compare(self, questions: Sequence[Messages]) -> list[Reply]:
        """A or B for each question that is to be answered so."""
