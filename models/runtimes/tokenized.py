"""What runtimes without a tokenizer of their own have in common: text and conversations by the files in the folder.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from models.pretrained import context_of
from models.runtimes.protocol import LogProbabilities, Message, ModelRuntime, RuntimeFault

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class TokenizedRuntime(ModelRuntime):
    """A runtime that is asked in ids, with the tokenizer and the config of its folder."""

    tokenizer: PreTrainedTokenizerFast
    config: Any

    @property
    def vocab_size(self) -> int:
        """Rows of the output layer: V."""
        return int(self.config.vocab_size)

    @property
    def context(self) -> int:
        """The most tokens that the model sees at a time."""
        return context_of(self.config)

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, split_special_tokens=True)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return text

    def chat_ids(self, messages: Sequence[Message]) -> list[int]:
        """The ids of the prompt that asks for an answer."""
        conversation = [dict(message) for message in messages]
        ids: list[int] = self.tokenizer.apply_chat_template(conversation, add_generation_prompt=True)["input_ids"]
        return ids

    def chat_log_probabilities(self, messages: Sequence[Message]) -> LogProbabilities:
        return self.log_probabilities(self.chat_ids(messages))

    def chat(self, messages: Sequence[Message], tokens: int = 128, temperature: float = 0.0) -> str:
        prompt = self.chat_ids(messages)
        room = self.context - len(prompt)
        if room < 1:
            raise RuntimeFault(f"The conversation has {len(prompt):,} tokens, and the context is {self.context:,}")
        most = min(tokens, room)
        ids = self._drawn_after(prompt, most, temperature) if temperature else self.greedy(prompt, most)
        answer: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return answer.strip()

    def _drawn_after(self, prompt: Sequence[int], tokens: int, temperature: float) -> list[int]:
        """A continuation whose tokens are drawn from the model's whole distribution, up to a special token."""
        draw, ends, ids = np.random.default_rng(), {*self.tokenizer.all_special_ids}, [*prompt]
        for _ in range(tokens):
            weights = self.log_probabilities(ids) / temperature
            ids.append(int(np.argmax(weights + draw.gumbel(size=weights.shape))))
            if ids[-1] in ends:
                break
        return ids[len(prompt) :]
