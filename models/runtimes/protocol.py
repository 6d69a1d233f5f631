"""The interface of every runtime to an open model. Its output is a function of the prompt, as everything is greedy
unless `chat` has a temperature.

Shapes: T tokens of a sequence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Message = Mapping[str, str]  # "role" and "content"
LogProbabilities = npt.NDArray[np.float64]
AllLogProbabilities = npt.NDArray[np.float32]


class RuntimeFault(RuntimeError):
    """A runtime can't load a model, or refuses a request."""


class ModelRuntime(Protocol):
    """An open model in one runtime."""

    def tokenize(self, text: str) -> list[int]:
        """The runtime's own ids of a plain text, with BOS if the model's texts begin with it. Special tokens in it stay
        text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, special tokens by their names. Invalid bytes become U+FFFD."""
        ...

    def log_probabilities(self, prompt: Sequence[int]) -> LogProbabilities:
        """(V,) natural logarithms of the next token's probabilities, before any sampling."""
        ...

    def all_log_probabilities(self, ids: Sequence[int]) -> AllLogProbabilities:
        """(T, V) natural logarithms at every position, in one pass: row t is of the token after ids[: t + 1]."""
        ...

    def greedy(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """The ids of the greedy continuation, at most `tokens`, ended early by an end token."""
        ...

    def chat_log_probabilities(self, messages: Sequence[Message]) -> LogProbabilities:
        """(V,) as `log_probabilities` of an answer's first token, by the runtime's own use of the chat template."""
        ...

    def chat(self, messages: Sequence[Message], tokens: int = 128, temperature: float = 0.0) -> str:
        """The assistant's answer, at most `tokens` long: greedy, or drawn at a temperature above 0. Raises RuntimeFault
        if the context is full."""
        ...

    def close(self) -> None:
        """Free the open model."""
        ...
