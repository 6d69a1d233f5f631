"""Whether an export computes what its checkpoint does, in the runtime that it is for, before publication (law 7).

Compared are token ids (of texts and of a conversation), the next token's whole distribution at positions spread over
held-out text, the perplexity there, and greedy continuations. A greedy difference counts only where the checkpoint was
sure: between two tokens that it finds equally likely, rounding decides.

Shapes: V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.runtimes.protocol import Message, ModelRuntime
from models.runtimes.transformers import TransformersRuntime
from storage.errors import ParityError
from storage.shards.arrays import Float64
from storage.shards.token_stream import TokenStream
from tasks.export.config import ExportConfig
from tasks.export.tolerance import Tolerance

LONGEST_PREFIX = 2048  # tokens; a context of some hundred thousand would take hours


@dataclass(frozen=True)
class Parity:
    """How a format compares with the checkpoint. Divergence in nats; the increase of the perplexity is relative."""

    positions: int
    mean_divergence: float
    max_difference: float
    perplexity: float
    perplexity_increase: float
    same_greedy: int
    greedy_ties: int
    prompts: int


class Reference:
    """The checkpoint's answers, computed once, that every format is compared with."""

    def __init__(self, folder: Path, stream: TokenStream, config: ExportConfig) -> None:
        self.config = config
        self.runtime = TransformersRuntime(folder)
        self.places = _places(stream, min(self.runtime.context, LONGEST_PREFIX), config.positions)
        self.at_places = [self.runtime.log_probabilities(ids) for ids, _ in self.places]
        self.perplexity = _perplexity(self.at_places, self.places)
        self.prompts = [(text, self.runtime.tokenize(text)) for text in config.prompts]
        self.chats = [(text, self.runtime.chat_ids(_messages(text))) for text in config.prompts]
        self.continued = [self.runtime.greedy(ids, config.greedy_tokens) for _, ids in self.prompts]

    def compare(self, candidate: ModelRuntime) -> Parity:
        """Compare everything that can differ. Raises ParityError for a text or a chat that has other token ids."""
        for text, ids in self.prompts:
            if candidate.tokenize(text) != ids:
                raise ParityError(f"The runtime tokenizes {text!r} differently.", "This is a defect; report it.")
        for text, ids in self.chats:
            if not np.array_equal(candidate.chat_log_probabilities(_messages(text)), candidate.log_probabilities(ids)):
                raise ParityError(
                    f"The runtime renders the question {text!r} differently.", "This is a defect; report it."
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

    def _greedy(self, candidate: ModelRuntime) -> tuple[int, int]:
        """How many prompts have the same continuation, and how many of those diverge at a tie."""
        same = ties = 0
        for (_, ids), expected in zip(self.prompts, self.continued, strict=True):
            found = candidate.greedy(ids, self.config.greedy_tokens)
            differs = next((i for i, pair in enumerate(zip(expected, found, strict=False)) if len(set(pair)) > 1), None)
            if differs is None:
                same += 1
                continue
            at = self.runtime.log_probabilities([*ids, *expected[:differs]])
            if at[expected[differs]] - at[found[differs]] <= self.config.tie:
                same, ties = same + 1, ties + 1
        return same, ties


def require(name: str, parity: Parity, tolerance: Tolerance) -> dict[str, Any]:
    """The numbers beside their limits. Raises ParityError, naming those beyond their limit."""
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
            f"{name} does not match its checkpoint: {'; '.join(problems)}. Nothing was published.",
            f"Leave {name} out of export.formats, or set export.tolerances.{name} if you accept the loss.",
        )
    rounded = {key: round(value, 8) if isinstance(value, float) else value for key, value in asdict(parity).items()}
    return {**rounded, "tolerance": tolerance.model_dump()}


def _places(stream: TokenStream, context: int, count: int) -> list[tuple[list[int], int]]:
    """(prefix, next id) at positions spread over the stream, with prefixes of one token to `context` less one."""
    places = []
    for number in range(count):
        length = 1 + (number * 37) % (context - 1)
        start = number * max(1, stream.tokens - context - 1) // count
        ids = stream.read(start, length + 1).tolist()
        if len(ids) > 1:
            places.append((ids[:-1], ids[-1]))
    return places


def _perplexity(at_places: Sequence[Float64], places: Sequence[tuple[list[int], int]]) -> float:
    return math.exp(-float(np.mean([log[target] for log, (_, target) in zip(at_places, places, strict=True)])))


def _divergence(p_V: Float64, q_V: Float64) -> float:
    """KL(p ‖ q) in nats; infinite where q rules out what p does not."""
    return float(np.sum(np.exp(p_V) * (p_V - q_V)))


def _messages(question: str) -> list[Message]:
    return [{"role": "user", "content": question}]
