"""Draws tokens as a request says, by transformers' own processors of logits.

The order is that of vLLM: penalties, temperature, then what leaves tokens out. Presence and frequency count the
answer's tokens, as in OpenAI's API, and repetition those of the whole text.

Shapes: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.serve.engines.protocol import Sampling


class Sampler:
    """The tokens of an answer: `ids`. Random numbers are drawn on the CPU, so that a seed means the same everywhere."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self.ids: list[int] = []
        self._prompt, self._greedy = list(prompt), sampling.greedy
        self._presence, self._frequency = sampling.presence_penalty, sampling.frequency_penalty
        self._penalty = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
        self._random = torch.Generator()
        if sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(sampling.seed)
        warpers: list[Any] = []
        if not sampling.greedy:
            warpers.append(TemperatureLogitsWarper(sampling.temperature))
            if sampling.top_k > 0:
                warpers.append(TopKLogitsWarper(sampling.top_k))
            if sampling.top_p < 1:
                warpers.append(TopPLogitsWarper(sampling.top_p))
            if sampling.min_p > 0:
                warpers.append(MinPLogitsWarper(sampling.min_p))
        self._warpers = LogitsProcessorList(warpers)

    def draw(self, logits_V: Tensor) -> int:
        """The next token."""
        scores_1V = logits_V[None].float()
        if self._penalty.penalty != 1:
            scores_1V = self._penalty(torch.tensor([self._prompt + self.ids], device=logits_V.device), scores_1V)
        if self.ids and (self._presence or self._frequency):
            times_V = torch.bincount(torch.tensor(self.ids, device=logits_V.device), minlength=len(logits_V))
            scores_1V = scores_1V - self._frequency * times_V - self._presence * (times_V > 0)
        if self._greedy:
            self.ids.append(int(scores_1V.argmax()))
        else:
            weights_V = self._warpers(None, scores_1V)[0].softmax(-1).cpu()
            self.ids.append(int(weights_V.multinomial(1, generator=self._random)))
        return self.ids[-1]
