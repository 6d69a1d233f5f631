"""Sampled answers of an open model of transformers, each drawn by a seed of its own.

A token is the one whose logit, plus Gumbel noise, is largest: that draws from the model's distribution (Gumbel 1954,
Maddison et al. 2014, §2). The noise comes from the answer's own generator, so an answer depends on its prompt and its
seed. Of the other answers in a batch, only the rounding of padded rows could reach it.

Shapes: B prompts, T tokens, V ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from models.runtimes.greedy import ROWS, cut, pad_left

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class _Noise(LogitsProcessor):
    """Turns the largest score into a draw, for each row by its own generator."""

    def __init__(self, seeds: Sequence[int], temperature: float, device: torch.device) -> None:
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self.temperature = temperature

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Scores (B, V) with noise: a logarithm of exponential noise, negated, is Gumbel noise."""
        noise_BV: Tensor = torch.empty_like(scores, dtype=torch.float32)
        for row_V, generator in zip(noise_BV, self.generators, strict=True):
            row_V.exponential_(generator=generator)
        return scores.float() / self.temperature - noise_BV.log()


@torch.no_grad()
def sampled(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    ends: Sequence[int],
    pad: int,
    max_new_tokens: int,
    temperature: float = 1.0,
) -> list[list[int]]:
    """An answer to each prompt of ids, drawn by its seed, with the token that ends it, if reached."""
    was_training = model.training
    model.eval()
    answers: list[list[int]] = []
    for start in range(0, len(prompts), ROWS):
        ids_BT, mask_BT = (each.to(model.device) for each in pad_left(prompts[start : start + ROWS], pad))
        noise = _Noise(seeds[start : start + ROWS], temperature, ids_BT.device)
        generated: Any = model.generate(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            do_sample=False,
            logits_processor=LogitsProcessorList([noise]),
            max_new_tokens=max_new_tokens,
            pad_token_id=pad,
            eos_token_id=list(ends),
            temperature=None,
            top_p=None,
            top_k=None,
        )
        answers += [cut(row, ends) for row in generated[:, ids_BT.shape[1] :].tolist()]
    model.train(was_training)
    return answers
