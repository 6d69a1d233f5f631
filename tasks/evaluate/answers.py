"""What each model answers to the same prompts: for people, who see at a glance what a link of post-training changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from models.conversation import render
from models.pretrained import context_of
from storage.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@torch.no_grad()
def answers(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str], tokens: int
) -> list[str]:
    """The greedy answer to each prompt through the chat template, at most `tokens` long.

    All are one batch, padded on the left. Raises ConfigError for a prompt that leaves no room for an answer.
    """
    asked = [
        render(tokenizer, [{"role": "user", "content": prompt}], add_generation_prompt=True)["input_ids"]
        for prompt in prompts
    ]
    longest, context = max(map(len, asked)), context_of(model.config)
    if longest >= context:
        raise ConfigError(
            f"evaluate.prompts has one of {longest:,} tokens, but the context is {context:,}.", "Shorten it."
        )
    padding = [longest - len(ids) for ids in asked]
    made = model.generate(
        torch.tensor([[tokenizer.eos_token_id] * pad + ids for pad, ids in zip(padding, asked, strict=True)]).to(
            model.device
        ),
        attention_mask=torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding]).to(model.device),
        do_sample=False,
        max_new_tokens=min(tokens, context - longest),
        pad_token_id=tokenizer.eos_token_id,
    )
    return [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in made[:, longest:].tolist()]
