"""The chain's model as the one that answers and judges.

Shapes: B conversations, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from models.conversation import Messages, TemplateFaultError, answer_text, render
from models.pretrained import context_of, open_pretrained
from models.runtimes.greedy import cut, ends_of, greedy, pad_left
from models.tokenizer import load_tokenizer, padding_id
from tasks.children.devices import device_of
from tasks.endpoint.reply import Reply

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from tasks.posttrain.feedback.config import FeedbackConfig
    from tasks.stage.runtime import Runtime

QUESTIONS = 8  # in a forward pass of `compare`
OVERLONG = Reply("", "overlong")


class LocalModel:
    """Greedy or sampled answers. Questions are answered by the more likely letter, so that any model gives one."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, config: FeedbackConfig) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.ends = ends_of(model, tokenizer)

    @classmethod
    def load(cls, folder: Path, config: FeedbackConfig, runtime: Runtime) -> LocalModel:
        """The model of a folder, on the device of the runtime."""
        torch.set_num_threads(runtime.compute.cpu_threads())
        return cls(open_pretrained(folder, device_of(runtime.compute)), load_tokenizer(folder), config)

    def say(self, conversations: Sequence[Messages]) -> list[Reply]:
        """The most likely answers, in batches of those that fit."""
        fits = [self._fits(one, self.config.max_new_tokens) for one in conversations]
        fitting = [one for one, fit in zip(conversations, fits, strict=True) if fit]
        answers = greedy(self.model, self.tokenizer, fitting, self.ends, self.config.max_new_tokens) if fitting else ()
        in_order = iter(answers)
        return [self._reply(next(in_order)) if fit else OVERLONG for fit in fits]

    def sample(self, conversations: Sequence[Messages], number: int, seeds: Sequence[int]) -> list[list[Reply]]:
        """Sampled one conversation after another, so that answers don't depend on the other conversations."""
        return [
            self._sampled(one, number, seed) if self._fits(one, self.config.max_new_tokens) else [OVERLONG]
            for one, seed in zip(conversations, seeds, strict=True)
        ]

    @torch.no_grad()
    def _sampled(self, messages: Messages, number: int, seed: int) -> list[Reply]:
        ids = render(self.tokenizer, messages, add_generation_prompt=True)["input_ids"]
        ids_BT = torch.tensor([ids] * number, device=self.model.device)
        model: Any = self.model
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            ids_BL = model.generate(
                input_ids=ids_BT,
                attention_mask=torch.ones_like(ids_BT),
                do_sample=True,
                temperature=self.config.temperature,
                top_k=0,
                top_p=1.0,
                max_new_tokens=self.config.max_new_tokens,
                pad_token_id=self._pad,
                eos_token_id=self.ends,
            )
        return [self._reply(cut(row, self.ends)) for row in ids_BL[:, len(ids) :].tolist()]

    @torch.no_grad()
    def compare(self, questions: Sequence[Messages]) -> list[Reply]:
        """The letter that is more likely as the first token, or an unclear reply if both are equally likely."""
        letters = [self.tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "AB"]
        fits = [self._fits(one, 1) for one in questions]
        fitting = [one for one, fit in zip(questions, fits, strict=True) if fit]
        replies: list[Reply] = []
        for start in range(0, len(fitting), QUESTIONS):
            rendered = [
                render(self.tokenizer, one, add_generation_prompt=True)["input_ids"]
                for one in fitting[start : start + QUESTIONS]
            ]
            ids_BT, mask_BT = (each.to(self.model.device) for each in pad_left(rendered, self._pad))
            positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
            output = self.model(input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions_BT, use_cache=False)
            for first, second in output.logits[:, -1, letters].float().tolist():
                replies.append(Reply("A" if first > second else "B", "" if first != second else "unclear"))
        in_order = iter(replies)
        return [next(in_order) if fit else OVERLONG for fit in fits]

    def _fits(self, messages: Messages, room: int) -> bool:
        """Whether `room` tokens fit after these messages, and the template accepts them."""
        try:
            ids = render(self.tokenizer, messages, add_generation_prompt=True)["input_ids"]
        except TemplateFaultError:
            return False
        return len(ids) + room <= context_of(self.model.config)

    @property
    def _pad(self) -> int:
        return padding_id(self.tokenizer)

    def _reply(self, ids: Sequence[int]) -> Reply:
        text = answer_text(self.tokenizer, ids, self.ends)
        return Reply.of(text, finished=bool(ids) and ids[-1] in self.ends)
