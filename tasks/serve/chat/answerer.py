"""The interface of what answers in a chat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from storage.errors import ConfigError

if TYPE_CHECKING:
    from models.runtimes.protocol import Message


@dataclass
class Manner:
    """The settings of answers."""

    tokens: int
    temperature: float
    system: str | None


@dataclass(frozen=True)
class Ended:
    """How an answer ended. `tokens` and `prompt_tokens` are None if they weren't counted."""

    finish: str | None  # as OpenAI's API names it, None if the server gave no reason
    tokens: int | None = None
    prompt_tokens: int | None = None


class ContextFull(ConfigError):
    """A conversation leaves no room for an answer."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "Shorten the message, or start a new conversation.")

    @classmethod
    def of(cls, tokens: int, context: int) -> ContextFull:
        """The error with both numbers."""
        return cls(f"The conversation has {tokens:,} tokens, and the context is {context:,}.")


class Answerer(Protocol):
    """An open model."""

    about: str  # one line: its name, format and context
    streams: bool

    def answer(self, messages: Sequence[Message], manner: Manner, say: Callable[[str], None]) -> Ended:
        """Answer, and call `say` with each part of the text. Ctrl-C raises KeyboardInterrupt and ends the work. Raises
        ContextFull, ConfigError for a conversation that is refused, and ServerError."""
        ...
