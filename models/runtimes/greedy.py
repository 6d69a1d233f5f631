"""Greedy answers of an open model of transformers to prompts, many in a batch.

Shapes: B prompts, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models.conversation import Messages, render
from models.tokenizer import padding_id

if TYPE_CHECKING:
    from transformers import LogitsProcessor, PreTrainedModel, PreTrainedTokenizerFast

ROWS = 32  # prompts in a batch


def ends_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The ids that end an answer: those of the model's generation config, and the tokenizer's."""
    known = model.generation_config.eos_token_id
    ends = [known] if isinstance(known, int) else list(known or ())
    return ends if tokenizer.eos_token_id in ends else [*ends, tokenizer.eos_token_id]


def greedy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[Messages],
    ends: Sequence[int],
    max_new_tokens: int,
) -> list[list[int]]:
    """The greedy answer to each prompt, with the token that ends it, if reached."""
    rendered = [render(tokenizer, prompt, add_generation_prompt=True)["input_ids"] for prompt in prompts]
    return greedy_after(model, tokenizer, rendered, ends, max_new_tokens)


@torch.no_grad()
def greedy_after(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    rendered: Sequence[Sequence[int]],
    ends: Sequence[int],
    max_new_tokens: int,
    *,
    rows: int = ROWS,
    choose: Callable[[int, int, int], LogitsProcessor] | None = None,
) -> list[list[int]]:
    """The same for prompts as ids. `choose` makes what changes the logits of a batch, from its first prompt, the one
    behind its last, and the tokens of its longest prompt."""
    was_training = model.training
    model.eval()
    answers: list[list[int]] = []
    pad = padding_id(tokenizer)
    for start in range(0, len(rendered), rows):
        ids_BT, mask_BT = pad_left(rendered[start : start + rows], pad)
        processors = [choose(start, start + rows, ids_BT.shape[1])] if choose else []
        generated: Any = model.generate(
            input_ids=ids_BT.to(model.device),
            attention_mask=mask_BT.to(model.device),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            pad_token_id=pad,
            eos_token_id=list(ends),
            temperature=None,
            top_p=None,
            top_k=None,
            logits_processor=processors,
        )
        answers += [cut(row, ends) for row in generated[:, ids_BT.shape[1] :].tolist()]
    model.train(was_training)
    return answers


def pad_left(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Rows of ids as one tensor, padded on the left, and its mask."""
    longest = max(map(len, rows))
    ids_BT = torch.tensor([[*[pad] * (longest - len(row)), *row] for row in rows])
    mask_BT = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids_BT, mask_BT


def cut(ids: Sequence[int], ends: Sequence[int]) -> list[int]:
    """An answer up to and including the first token that ends it."""
    for place, id in enumerate(ids):
        if id in ends:
            return list(ids[: place + 1])
    return list(ids)
