"""The base of runtimes without their own tokenizer: text and conversations by the tokenizer in the folder.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from models.conversation import TemplateFaultError, answer_text, render
from models.pretrained import context_of
from models.runtimes.protocol import LogProbabilities, Message, ModelRuntime, RuntimeFault
from models.tokenizer import text_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class TokenizedRuntime(ModelRuntime):
    """A runtime that takes ids, with the tokenizer and the config of its folder."""

    tokenizer: PreTrainedTokenizerFast
    config: Any
    ends: Collection[int]  # the ids that end a generation

    @property
    def vocab_size(self) -> int:
        """Rows of the output layer: V."""
        return int(self.config.vocab_size)

    @property
    def context(self) -> int:
        """The most tokens that the model sees at a time."""
        return context_of(self.config)

    def tokenize(self, text: str) -> list[int]:
        return text_ids(self.tokenizer, text)

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return text

    def chat_ids(self, messages: Sequence[Message]) -> list[int]:
        """The ids of the prompt that asks for an answer. Raises RuntimeFault if the template refuses it."""
        try:
            return render(self.tokenizer, messages, add_generation_prompt=True)["input_ids"]
        except TemplateFaultError as fault:
            raise RuntimeFault(f"The chat template refuses the conversation ({fault.__cause__ or fault})") from fault

    def chat_log_probabilities(self, messages: Sequence[Message]) -> LogProbabilities:
        return self.log_probabilities(self.chat_ids(messages))

    def chat(self, messages: Sequence[Message], tokens: int = 128, temperature: float = 0.0) -> str:
        prompt = self.chat_ids(messages)
        room = self.context - len(prompt)
        if room < 1:
            raise RuntimeFault(f"The conversation has {len(prompt):,} tokens, and the context is {self.context:,}")
        most = min(tokens, room)
        ids = self._drawn_after(prompt, most, temperature) if temperature else self.greedy(prompt, most)
        return answer_text(self.tokenizer, ids, self.ends).strip()

    def _drawn_after(self, prompt: Sequence[int], tokens: int, temperature: float) -> list[int]:
        """A continuation whose tokens are drawn from the model's whole distribution, up to one that ends it."""
        draw, ids = np.random.default_rng(), [*prompt]
        for _ in range(tokens):
            weights = self.log_probabilities(ids) / temperature
            ids.append(int(np.argmax(weights + draw.gumbel(size=weights.shape))))
            if ids[-1] in self.ends:
                break
        return ids[len(prompt) :]
