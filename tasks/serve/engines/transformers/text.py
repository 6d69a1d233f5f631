"""The text of tokens as they come, up to a stop text.

A token may be a part of a character, and a stop text may begin in one token and end in another. What may still become
either waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BEFORE = 6  # tokens by which those behind them are decoded: some decoders drop a blank before the first token
PART = "\N{REPLACEMENT CHARACTER}"  # at the end of a text: a part of a character


class Text:
    """The text behind a prompt. `stop` is the stop text that ended it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._before, self._new = list(prompt[-BEFORE:]), list[int]()
        self._waits = ""
        self.stop: str | None = None

    def add(self, id: int) -> str:
        """The text that is known with another token."""
        self._new.append(id)
        text = self._decoded()
        if text.endswith(PART):
            return ""
        self._before, self._new = self._new if text else self._before, []
        return self._known(text)

    def end(self) -> str:
        """The rest, after the last token."""
        if self.stop is not None:
            return ""
        text = self._known(self._decoded())
        return text if self.stop is not None else text + self._waits

    def _decoded(self) -> str:
        return decoded(self._tokenizer, [*self._before, *self._new])[len(decoded(self._tokenizer, self._before)) :]

    def _known(self, text: str) -> str:
        """What of a text, after what waits, can't become a stop text."""
        text = self._waits + text
        found = [(text.index(stop), stop) for stop in self._stops if stop in text]
        if found:
            place, self.stop = min(found)
            return text[:place]
        sizes = [size for stop in self._stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
        known = len(text) - max(sizes, default=0)
        self._waits = text[known:]
        return text[:known]


def decoded(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    """The text of ids without special tokens."""
    text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text
