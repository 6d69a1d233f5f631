"""An environment: it replies to a model's answers, one conversation at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from models.conversation import Messages


class Opening(NamedTuple):
    """The beginning of a conversation, its prompt included, and the tools that the chat template shows to the model, as
    JSON schemas of functions. `failed` says why there is none: then the messages are those of the row."""

    messages: Messages
    tools: Sequence[Mapping[str, Any]] = ()
    failed: str = ""


class Step(NamedTuple):
    """What follows an answer. The conversation goes on with `observation`, unless it is `done`. `reward` is what this
    answer earns. `called` says whether it called a tool, and `failed` why that failed."""

    observation: str = ""
    reward: float = 0.0
    done: bool = False
    called: bool = False
    failed: str = ""


class Environments(Protocol):
    """As many conversations at a time as there are rows."""

    def reset(self, rows: Sequence[Mapping[str, Any]]) -> list[Opening]:
        """Begin a conversation for each row, which has `prompt`, `reference` and the row's own fields."""

    def step(self, answers: Mapping[int, str]) -> dict[int, Step | str]:
        """Reply to the last answers of some conversations, by their places. A text says why one can't go on."""

    def close(self) -> None:
        """End its processes."""
