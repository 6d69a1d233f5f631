"""Sampled answers that depend on their seeds, but not on what is sampled beside them.

Each answer has random numbers of its own, one for each token, which is where the number falls in the distribution.
torch's own draws depend on a row's place in the tensor. So answers are the same in batches of other sizes and on other
processes, unless a number falls as close to the border between two tokens as rounding goes: about once in a million.

Shapes: B answers, T tokens of an answer, V ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor

from models.runtimes.greedy import greedy_after
from storage.errors import OutOfMemory
from tasks.training.recovery.out_of_memory import in_halves

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

AT_ONCE = 8  # answers that are sampled together for each that is learned from together: they take less memory


class ByNumbers(LogitsProcessor):
    """Leaves one token of each answer: that at which the distribution's sum exceeds the answer's number."""

    def __init__(self, numbers_BT: Tensor, prompt: int, temperature: float) -> None:
        self.numbers_BT, self.prompt, self.temperature = numbers_BT, prompt, temperature

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Logits (B, V) of a step, all but one of each row minus infinity."""
        number_B1 = self.numbers_BT[:, input_ids.shape[1] - self.prompt, None].to(scores.device)
        sums_BV = (scores.float() / self.temperature).softmax(-1).double().cumsum(-1)
        token_B1 = torch.searchsorted(sums_BV, number_B1 * sums_BV[:, -1:], right=True)
        token_B1 = token_B1.clamp(max=scores.shape[1] - 1)
        return torch.full_like(scores, -torch.inf).scatter(1, token_B1, 0.0)


def numbers_of(seed: int, tokens: int) -> Tensor:
    """The random numbers of the tokens of an answer, from 0 to below 1."""
    return torch.rand(tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seed_of(name: str) -> int:
    """The seed of what has this name, of 63 bits."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 1


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    ends: Sequence[int],
    max_new_tokens: int,
    *,
    temperature: float,
    learned: int,
) -> list[list[int]]:
    """An answer to each prompt of ids, with the token that ends it, if reached. Answers of other seeds are independent.
    `learned` answers are in a forward pass of the training. If memory runs out, they are sampled in smaller batches.

    Raises OutOfMemory if one doesn't fit by itself."""

    def answer(part: Sequence[tuple[Sequence[int], int]]) -> list[list[int]]:
        numbers_BT = torch.stack([numbers_of(seed, max_new_tokens) for _, seed in part])

        def choose(start: int, stop: int, prompt: int) -> LogitsProcessor:
            return ByNumbers(numbers_BT[start:stop], prompt, temperature)

        rendered = [one for one, _ in part]
        return greedy_after(model, tokenizer, rendered, ends, max_new_tokens, rows=len(part), choose=choose)

    def too_large(_: Any) -> OutOfMemory:
        return OutOfMemory("Memory runs out when one answer is sampled.", "Lower max_new_tokens or max_length.")

    items, size = list(zip(prompts, seeds, strict=True)), AT_ONCE * learned
    with _as_it_is(model):
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        return [ids for part in parts for ids in in_halves(answer, part, too_large)]


@contextmanager
def _as_it_is(model: Any) -> Iterator[None]:
    """Samples from the model's own distribution: the settings of a base may penalise repetition."""
    models = [model, *([model.get_base_model()] if hasattr(model, "peft_config") else [])]
    before = [one.generation_config for one in models]
    for one in models:
        one.generation_config = GenerationConfig()
    try:
        yield
    finally:
        for one, config in zip(models, before, strict=True):
            one.generation_config = config
