"""A request, whichever API it came by, and what answers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasks.serve.engines.protocol import Sampling, TokenChoice

FinishReason = Literal["stop", "length", "content_filter", "tool_calls"]


@dataclass(frozen=True)
class Conversation:
    """Messages for the chat template, and tools that it may write."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Ask:
    """A request. `max_tokens` 0 of `sampling` means whatever the context leaves."""

    model: str
    prompt: Conversation | str | Sequence[int]
    sampling: Sampling
    answers: int = 1
    stream: bool = False
    usage: bool = False  # a last event with the numbers of tokens


@dataclass(frozen=True)
class Client:
    """Who asks, and by which route. `local`: from this machine."""

    request_id: str
    route: str
    presented: str | None
    local: bool


@dataclass(frozen=True)
class Delta:
    """An addition to one of the answers. Its last one has `finish`."""

    answer: int
    text: str = ""
    choices: tuple[TokenChoice, ...] = ()
    finish: FinishReason | None = None
    stop: str | None = None
    calls: tuple[Mapping[str, Any], ...] = ()  # of tools, in OpenAI's form
    written: tuple[str, ...] = ()  # the same as the model wrote them
    prompt: tuple[str, ...] = ()  # log-probabilities, as in a piece


@dataclass(frozen=True)
class Usage:
    """Tokens of the prompt, and of the texts that were sent, by the release's tokenizer."""

    prompt: int
    completion: int

    def openai(self) -> dict[str, int]:
        """As OpenAI's API names them."""
        total = self.prompt + self.completion
        return {"prompt_tokens": self.prompt, "completion_tokens": self.completion, "total_tokens": total}
