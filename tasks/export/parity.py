"""Is an export the model that it came from? Asked in the runtime that it is for, before it is published (law 7).

Compared are token ids (of texts and of a conversation), the whole distribution of the next token at places spread over
held-out text, the perplexity there, and greedy continuations. A greedy difference counts only where the checkpoint was
sure: between two tokens that it finds equally likely, rounding decides.

Shapes: V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from models.tokenizer import load_tokenizer
from storage.errors import ParityError
from storage.token_stream import TokenStream
from tasks.export.config import ExportConfig, Tolerance
from tasks.export.formats.checkpoints import load_model
from tasks.export.runtime import GgufModel

Array = npt.NDArray[np.float64]


class Runtime(Protocol):
    """A model in the runtime that it is for."""

    def tokenize(self, text: str) -> list[int]:
        """The runtime's own ids of a plain text; special tokens in it stay text."""
        ...

    def log_probabilities(self, prompt: list[int]) -> Array:
        """(V,) natural logarithms of the next token's probabilities."""
        ...

    def greedy(self, prompt: list[int], tokens: int) -> list[int]:
        """Up to `tokens` ids, ended early by an end token."""
        ...

    def chat_log_probabilities(self, question: str) -> Array:
        """(V,) the same for the first token of an answer, through the runtime's own use of the template."""
        ...


class InTransformers:
    """A folder as transformers loads it."""

    def __init__(self, folder: Path) -> None:
        self.model = load_model(folder)
        self.tokenizer = load_tokenizer(folder)

    def tokenize(self, text: str) -> list[int]:
        """See Runtime."""
        ids: list[int] = self.tokenizer.encode(text, split_special_tokens=True)
        return ids

    @torch.no_grad()
    def log_probabilities(self, prompt: list[int]) -> Array:
        """See Runtime."""
        logits_V = self.model(torch.tensor([prompt])).logits[0, -1].double()
        found: Array = torch.log_softmax(logits_V, -1).numpy()
        return found

    def greedy(self, prompt: list[int], tokens: int) -> list[int]:
        """See Runtime; by transformers' own `generate`."""
        ids = torch.tensor([prompt])
        made = self.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens)
        found: list[int] = made[0, len(prompt) :].tolist()
        return found

    def chat_ids(self, question: str) -> list[int]:
        """The prompt that asks for an answer."""
        ids: list[int] = self.tokenizer.apply_chat_template(_messages(question), add_generation_prompt=True)[
            "input_ids"
        ]
        return ids

    def chat_log_probabilities(self, question: str) -> Array:
        """See Runtime."""
        return self.log_probabilities(self.chat_ids(question))


class InLlamaCpp:
    """A GGUF file as llama.cpp loads it."""

    def __init__(self, path: Path, vocab_size: int, threads: int) -> None:
        self.model = GgufModel(path, threads=threads)
        self.vocab_size = vocab_size

    def tokenize(self, text: str) -> list[int]:
        """See Runtime."""
        return self.model.tokenize(text)

    def log_probabilities(self, prompt: list[int]) -> Array:
        """See Runtime."""
        return self._array(self.model.log_probabilities(prompt, self.vocab_size))

    def greedy(self, prompt: list[int], tokens: int) -> list[int]:
        """See Runtime."""
        return self.model.greedy(prompt, tokens)

    def chat_log_probabilities(self, question: str) -> Array:
        """See Runtime."""
        return self._array(self.model.chat_log_probabilities(_messages(question), self.vocab_size))

    def _array(self, found: dict[int, float]) -> Array:
        """A token that llama.cpp leaves out has probability 0."""
        values = np.full(self.vocab_size, -math.inf)
        values[list(found)] = list(found.values())
        return values


@dataclass(frozen=True)
class Parity:
    """What was compared, and what came. Divergence in nats; the increase is relative."""

    positions: int
    mean_divergence: float
    max_difference: float
    perplexity: float
    perplexity_increase: float
    same_greedy: int
    greedy_ties: int
    prompts: int


class Reference:
    """The checkpoint, asked once: the answers that every format is compared with."""

    def __init__(self, folder: Path, stream: TokenStream, config: ExportConfig) -> None:
        self.config = config
        self.runtime = InTransformers(folder)
        context = int(self.runtime.model.config.max_position_embeddings)
        self.places = _places(stream, context, config.positions)
        self.at_places = [self.runtime.log_probabilities(ids) for ids, _ in self.places]
        self.perplexity = _perplexity(self.at_places, self.places)
        self.prompts = [(text, self.runtime.tokenize(text)) for text in config.prompts]
        self.chats = [(text, self.runtime.chat_ids(text)) for text in config.prompts]
        self.continued = [self.runtime.greedy(ids, config.greedy_tokens) for _, ids in self.prompts]

    def compare(self, candidate: Runtime) -> Parity:
        """Everything that can differ. Raises ParityError when the runtime makes other token ids of a text."""
        for text, ids in self.prompts:
            if candidate.tokenize(text) != ids:
                raise ParityError(f"The runtime makes other token ids of {text!r}.", "This is a defect; report it.")
        for text, ids in self.chats:
            if not np.array_equal(candidate.chat_log_probabilities(text), candidate.log_probabilities(ids)):
                raise ParityError(
                    f"The runtime renders the question {text!r} otherwise.", "This is a defect; report it."
                )
        theirs = [candidate.log_probabilities(ids) for ids, _ in self.places]
        same, ties = self._greedy(candidate)
        perplexity = _perplexity(theirs, self.places)
        return Parity(
            positions=len(self.places),
            mean_divergence=float(np.mean([_divergence(p, q) for p, q in zip(self.at_places, theirs, strict=True)])),
            max_difference=max(float(np.abs(p - q).max()) for p, q in zip(self.at_places, theirs, strict=True)),
            perplexity=perplexity,
            perplexity_increase=perplexity / self.perplexity - 1,
            same_greedy=same,
            greedy_ties=ties,
            prompts=len(self.prompts),
        )

    def _greedy(self, candidate: Runtime) -> tuple[int, int]:
        """How many prompts are continued alike, and how many of those part at a tie."""
        same = ties = 0
        for (_, ids), expected in zip(self.prompts, self.continued, strict=True):
            found = candidate.greedy(ids, self.config.greedy_tokens)
            parted = next((i for i, pair in enumerate(zip(expected, found, strict=False)) if len(set(pair)) > 1), None)
            if parted is None:
                same += 1
                continue
            at = self.runtime.log_probabilities([*ids, *expected[:parted]])
            if at[expected[parted]] - at[found[parted]] <= self.config.tie:
                same, ties = same + 1, ties + 1
        return same, ties


def require(name: str, parity: Parity, tolerance: Tolerance) -> dict[str, Any]:
    """The numbers beside their limits. Raises ParityError, naming the first that is beyond."""
    problems = []
    if not parity.mean_divergence <= tolerance.max_divergence:
        problems.append(f"mean divergence {parity.mean_divergence:.2e} nats, at most {tolerance.max_divergence:g}")
    if not parity.perplexity_increase <= tolerance.max_perplexity_increase:
        problems.append(
            f"perplexity up by {parity.perplexity_increase:.2%}, at most {tolerance.max_perplexity_increase:.2%}"
        )
    if tolerance.same_greedy and parity.same_greedy < parity.prompts:
        problems.append(f"{parity.prompts - parity.same_greedy} of {parity.prompts} greedy continuations differ")
    if problems:
        raise ParityError(
            f"{name} is not the checkpoint that it came from: {'; '.join(problems)}. Nothing was published.",
            f"Leave {name} out of export.formats, or set export.tolerances.{name} if you accept the loss.",
        )
    rounded = {key: round(value, 8) if isinstance(value, float) else value for key, value in asdict(parity).items()}
    return {**rounded, "tolerance": tolerance.model_dump()}


def _places(stream: TokenStream, context: int, count: int) -> list[tuple[list[int], int]]:
    """(prefix, next id) at places spread over the stream, with prefixes from short to a full context."""
    places = []
    for number in range(count):
        length = 1 + (number * 37) % (context - 1)
        start = number * max(1, stream.tokens - context - 1) // count
        ids = stream.read(start, length + 1).tolist()
        if len(ids) > 1:
            places.append((ids[:-1], ids[-1]))
    return places


def _perplexity(at_places: Sequence[Array], places: Sequence[tuple[list[int], int]]) -> float:
    return math.exp(-float(np.mean([log[target] for log, (_, target) in zip(at_places, places, strict=True)])))


def _divergence(p_V: Array, q_V: Array) -> float:
    """KL(p ‖ q) in nats; infinite where q rules out what p does not."""
    return float(np.sum(np.exp(p_V) * (p_V - q_V)))


def _messages(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]
