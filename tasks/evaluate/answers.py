"""What each model answers to the same prompts: for people, who see at a glance what a link of post-training changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from models.conversation import render
from models.pretrained import context_of
from models.runtimes.greedy import ends_of, greedy
from storage.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


def answers(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str], tokens: int
) -> list[str]:
    """The greedy answer to each prompt through the chat template, at most `tokens` long.

    Raises ConfigError for a prompt that leaves no room for an answer.
    """
    asked = [[{"role": "user", "content": prompt}] for prompt in prompts]
    lengths = [len(render(tokenizer, messages, add_generation_prompt=True)["input_ids"]) for messages in asked]
    longest, context = max(lengths), context_of(model.config)
    if longest >= context:
        raise ConfigError(
            f"evaluate.prompts has one of {longest:,} tokens, but the context is {context:,}.", "Shorten it."
        )
    made = greedy(model, tokenizer, asked, ends_of(model, tokenizer), min(tokens, context - longest))
    return [str(tokenizer.decode(ids, skip_special_tokens=True)).strip() for ids in made]
