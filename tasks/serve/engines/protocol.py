"""The interface of every engine to the server: token ids in, pieces of text out, as a stream that can be closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Finish = Literal["stop", "length"]
LEAST_TEMPERATURE = 1e-3  # below it, logits divided by it overflow, and answers break


class EngineFault(RuntimeError):
    """An engine doesn't answer, or ended while it answered. The request may succeed once it is back. `status` and
    `reason` are those of an answer over HTTP."""

    def __init__(self, message: str, status: int | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class EngineRefusal(RuntimeError):
    """An engine refuses a request that it can't honour, such as a grammar that it can't parse. `code` is its name for
    the reason, if it gave one."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class NotReported(EngineRefusal):
    """An engine doesn't report tokens by their ids."""


@dataclass(frozen=True)
class Sampling:
    """How an answer is drawn. The defaults are those of OpenAI's API."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all tokens
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None  # alternatives to report for each token
    prompt_logprobs: int | None = None  # and for each token of the prompt
    json_schema: Mapping[str, Any] | None = None
    grammar: str | None = None
    adapter: str | None = None  # the name of a LoRA adapter over the model

    @property
    def greedy(self) -> bool:
        """Whether each token is the likeliest."""
        return self.temperature < LEAST_TEMPERATURE


@dataclass(frozen=True)
class TokenChoice:
    """A token that was drawn, with the natural logarithm of its probability, and its likeliest alternatives."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Piece:
    """What an engine adds to an answer. `ids` are the tokens behind it, empty if the engine doesn't report them. The
    last piece has `finish`, and `stop` if a stop text ended the answer. `prompt` has the log-probabilities of tokens of
    the prompt: objects of JSON in vLLM's form, as there may be a million."""

    text: str
    ids: tuple[int, ...] = ()
    choices: tuple[TokenChoice, ...] = ()
    finish: Finish | None = None
    stop: str | None = None
    prompt: tuple[str, ...] = ()


class Engine(Protocol):
    """A running engine with one model."""

    name: str
    features: frozenset[
        str
    ]  # of "logprobs", "prompt_logprobs", "json_schema", "grammar", "embeddings", "ids", and "grammar_apart":
    # answers by a grammar come one at a time, outside the slots

    async def start(self) -> None:
        """Start the engine and wait until it answers. Raises EngineFault."""
        ...

    async def stop(self) -> None:
        """End the engine and its processes."""
        ...

    @property
    def alive(self) -> bool:
        """Whether its process runs. An engine elsewhere counts as alive."""
        ...

    def generate(self, ids: Sequence[int], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """Answer a prompt. Closing the iterator aborts it in the engine. Raises EngineFault and EngineRefusal."""
        ...

    async def running(self) -> int:
        """The number of requests that the engine works on, by its own counter. Raises EngineFault."""
        ...

    async def next_token(self, ids: Sequence[int], count: int, adapter: str | None = None) -> list[tuple[int, float]]:
        """The `count` likeliest tokens after a prompt, with the natural logarithms of their probabilities. Raises
        EngineFault."""
        ...

    async def embed(self, ids: Sequence[int]) -> list[float]:
        """The embedding of a text. Raises EngineRefusal without the feature."""
        ...
