"""Encodes conversations that the harness renders as text, so that no text of a question becomes a control token. The
text of a benchmark without a chat template is encoded as the harness does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.models.huggingface import HFLM

from models.conversation import broken_messages, without_breaks
from models.conversation.control import BREAK
from models.tokenizer import padding_id

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class ChatEncoding:
    """A mixin before a model class of the harness that has a tokenizer: HFLM's own encoding around `BREAK`.

    Shapes: B texts, T tokens.
    """

    tokenizer: PreTrainedTokenizerFast

    def apply_chat_template(self, chat_history: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of a conversation, with breaks."""
        broken, _ = broken_messages(self.tokenizer, chat_history)
        text: str = HFLM.apply_chat_template(self, broken, add_generation_prompt)
        return text

    def tok_encode(self, string: str, *given: Any, left_truncate_len: int | None = None, **more: Any) -> list[int]:
        """The ids of a text without those of its breaks."""
        ids = without_breaks(self.tokenizer, HFLM.tok_encode(self, string, *given, **more), string)
        return ids[-left_truncate_len:] if left_truncate_len else ids

    def tok_batch_encode(
        self, strings: list[str], padding_side: str = "left", left_truncate_len: int | None = None, **more: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and mask (B, T) of texts, by the harness itself if none has a break."""
        if not any(BREAK in text for text in strings):
            encoded: tuple[torch.Tensor, torch.Tensor] = HFLM.tok_batch_encode(
                self, strings, padding_side, left_truncate_len, **more
            )
            return encoded
        rows = [self.tok_encode(text, left_truncate_len=left_truncate_len) for text in strings]
        longest, pad = max(map(len, rows)), padding_id(self.tokenizer)
        gaps = [[pad] * (longest - len(row)) for row in rows]
        masks = [[0] * len(gap) + [1] * len(row) for gap, row in zip(gaps, rows, strict=True)]
        ids = [[*gap, *row] for gap, row in zip(gaps, rows, strict=True)]
        return torch.tensor(ids), torch.tensor(masks)
