"""Answers of an open model of transformers to many prompts, greedy or sampled, each by a seed of its own.

Prompts of similar length share a batch. The batches follow only from the prompts, so that a caller that stores each
finished batch resumes with the same ones after a kill. A sample is the maximum of the logits plus Gumbel noise
(Maddison et al. 2014, "A* Sampling"), which is drawn for each row by its own seed, so that another batch size changes
only the rounding of sums.

Shapes: B prompts, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models.pretrained import context_of
from models.runtimes.greedy import cut, ends_of, pad_left
from models.tokenizer import padding_id

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True)
class Prompt:
    """The ids of a prompt, and the seed of its sample."""

    ids: Sequence[int]
    seed: int


class NoRoomError(ValueError):
    """The prompt at `place` leaves no room for an answer in the context of the model."""

    def __init__(self, place: int, tokens: int, context: int) -> None:
        super().__init__(f"it has {tokens:,} tokens, and the context is {context:,}")
        self.place = place


def batches_of(prompts: Sequence[Prompt], context: int, max_new_tokens: int, size: int) -> list[list[int]]:
    """The places of prompts, `size` in a batch, the longest first. A batch has prompts with room for equally many new
    tokens, so that one prompt never shortens another's answer. Raises NoRoomError."""
    room = [min(max_new_tokens, context - len(prompt.ids)) for prompt in prompts]
    for place, left in enumerate(room):
        if left < 1:
            raise NoRoomError(place, len(prompts[place].ids), context)
    order = sorted(range(len(prompts)), key=lambda place: (-len(prompts[place].ids), place))
    batches = []
    for _, group in groupby(order, key=lambda place: room[place]):
        places = list(group)
        batches += [places[start : start + size] for start in range(0, len(places), size)]
    return batches


@torch.no_grad()
def answer_batch(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    temperature: float,
) -> list[list[int]]:
    """The ids of the answer to each prompt of a batch of `batches_of`, with the token that ends it, if reached. At
    temperature 0 they are the most likely ones."""
    from transformers import LogitsProcessorList

    pad = padding_id(tokenizer)
    ends = ends_of(model, tokenizer)
    room = min(max_new_tokens, context_of(model.config) - max(len(prompt.ids) for prompt in prompts))
    ids_BT, mask_BT = pad_left([prompt.ids for prompt in prompts], pad)
    noise = [_GumbelNoise([prompt.seed for prompt in prompts], temperature)] if temperature else []
    whole: Any = model
    generated = whole.generate(
        input_ids=ids_BT.to(model.device),
        attention_mask=mask_BT.to(model.device),
        do_sample=False,  # the noise makes the maximum a sample
        max_new_tokens=room,
        pad_token_id=pad,
        eos_token_id=ends,
        temperature=None,
        top_p=None,
        top_k=None,
        logits_processor=LogitsProcessorList(noise),
    )
    return [cut(row, ends) for row in generated[:, ids_BT.shape[1] :].tolist()]


class _GumbelNoise:
    """Adds noise to logits, so that their maximum is a sample."""

    def __init__(self, seeds: Sequence[int], temperature: float) -> None:
        self.temperature = temperature
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: Tensor, scores_BV: Tensor) -> Tensor:
        """The logits with noise, drawn on the CPU, so that a seed gives the same noise on every device."""
        size = scores_BV.shape[1]
        drawn_BV = torch.stack(list(self._draw(size))).to(scores_BV.device)
        return scores_BV.float() / self.temperature + drawn_BV

    def _draw(self, size: int) -> Iterator[Tensor]:
        for generator in self.generators:
            exponential_V = torch.empty(size).exponential_(generator=generator)
            yield -exponential_V.clamp(min=torch.finfo(torch.float32).tiny).log()
