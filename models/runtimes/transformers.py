"""A model folder in transformers: float32 on the CPU, or quantized by bitsandbytes as its config says.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from models.pretrained import context_of, load_pretrained
from models.runtimes.protocol import LogProbabilities, Message, ModelRuntime, RuntimeFault
from models.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_model(folder: Path, **options: Any) -> PreTrainedModel:
    """A model as any user of transformers loads it, to be asked."""
    # Quantized layers run on the CPU too, so that a release needs no GPU to be proved
    return load_pretrained(folder, device_map="cpu", **options).eval()


class TransformersRuntime(ModelRuntime):
    """A folder as transformers loads it."""

    def __init__(self, folder: Path) -> None:
        self.model = load_model(folder)
        self.tokenizer = load_tokenizer(folder)

    @property
    def vocab_size(self) -> int:
        """Rows of the output layer: V."""
        return int(self.model.config.vocab_size)

    @property
    def context(self) -> int:
        """The most tokens that the model sees at a time."""
        return context_of(self.model.config)

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, split_special_tokens=True)
        return ids

    @torch.no_grad()
    def log_probabilities(self, prompt: Sequence[int]) -> LogProbabilities:
        logits_V = self.model(torch.tensor([list(prompt)])).logits[0, -1].double()
        found: LogProbabilities = torch.log_softmax(logits_V, -1).numpy()
        return found

    def greedy(self, prompt: Sequence[int], tokens: int) -> list[int]:
        ids = torch.tensor([list(prompt)])
        made = self.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens)
        found: list[int] = made[0, len(prompt) :].tolist()
        return found

    def chat_ids(self, messages: Sequence[Message]) -> list[int]:
        """The ids of the prompt that asks for an answer."""
        conversation = [dict(message) for message in messages]
        ids: list[int] = self.tokenizer.apply_chat_template(conversation, add_generation_prompt=True)["input_ids"]
        return ids

    def chat_log_probabilities(self, messages: Sequence[Message]) -> LogProbabilities:
        return self.log_probabilities(self.chat_ids(messages))

    def chat(self, messages: Sequence[Message], tokens: int = 128) -> str:
        prompt = self.chat_ids(messages)
        room = self.context - len(prompt)
        if room < 1:
            raise RuntimeFault(f"The conversation has {len(prompt):,} tokens, and the context is {self.context:,}")
        answer: str = self.tokenizer.decode(self.greedy(prompt, min(tokens, room)), skip_special_tokens=True)
        return answer.strip()

    def close(self) -> None:
        del self.model
