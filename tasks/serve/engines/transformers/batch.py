"""The keys and values of answers that go on together. Each has a row, in which its text ends where the others' do.

A row of fewer tokens is padded before its text, and after the virtual tokens, where the model puts them itself. A layer
that sees only a window keeps its end.

Shapes: B rows, T tokens of the longest, S of a layer's cache, H heads, D their size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from models.kernels.virtual_tokens import virtual_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def can_join(config: Any) -> bool:
    """Whether a model's cache is of keys and values only. The states of recurrent layers can't be padded."""
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in DynamicCache(config=config).layers)


class Batch:
    """The rows, and the model that they go on with."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._virtual = virtual_tokens(model.config)
        self._lengths: list[int] = []  # tokens of each row
        self._cache = DynamicCache(config=model.config)

    def length(self, cache: DynamicCache) -> int:
        """The tokens of a text that was read."""
        return int(cache.get_seq_length()) - self._virtual

    def read(self, ids: Sequence[int], cache: DynamicCache | None, kept: int = 1) -> tuple[Tensor, DynamicCache]:
        """Logits (kept, V) after the last of some ids that follow those in a cache, and the cache with them."""
        cache = DynamicCache(config=self._model.config) if cache is None else cache
        ids_1T = torch.tensor([ids], device=self._model.device)
        return self._model(ids_1T, past_key_values=cache, use_cache=True, logits_to_keep=kept).logits[0], cache

    def join(self, cache: DynamicCache, length: int) -> None:
        """Add the row of a prompt."""
        if not self._lengths:
            self._cache = cache
        else:
            for layer, other in zip(self._cache.layers, cache.layers, strict=True):
                tokens = max(layer.keys.shape[2], other.keys.shape[2])
                layer.keys = torch.cat([self._fitted(layer.keys, tokens), self._fitted(other.keys, tokens)])
                layer.values = torch.cat([self._fitted(layer.values, tokens), self._fitted(other.values, tokens)])
                if isinstance(layer, DynamicSlidingWindowLayer):
                    layer.cumulative_length = max(layer.cumulative_length, other.cumulative_length)
        self._lengths.append(length)

    def step(self, ids: Sequence[int]) -> Tensor:
        """Logits (B, V) after one more id in each row."""
        device, longest = self._model.device, max(self._lengths) + 1
        mask_BT = [[0] * (longest - 1 - length) + [1] * (length + 1) for length in self._lengths]
        logits_B1V = self._model(
            torch.tensor(ids, device=device)[:, None],
            attention_mask=torch.tensor(mask_BT, device=device),
            position_ids=torch.tensor(self._lengths, device=device)[:, None],
            past_key_values=self._cache,
            use_cache=True,
        ).logits
        self._lengths = [length + 1 for length in self._lengths]
        logits_BV: Tensor = logits_B1V[:, -1]
        return logits_BV

    def keep(self, kept: Sequence[bool]) -> None:
        """Keep some of the rows, and no padding that all of them have."""
        before = max(self._lengths)
        self._lengths = [length for length, stays in zip(self._lengths, kept, strict=True) if stays]
        if not self._lengths:
            self._cache = DynamicCache(config=self._model.config)
            return
        padding = before - max(self._lengths)
        rows_B = torch.tensor(kept, device=self._model.device)
        for layer in self._cache.layers:
            tokens = layer.keys.shape[2] - padding
            if isinstance(layer, DynamicSlidingWindowLayer):
                layer.cumulative_length -= padding
                tokens = min(layer.cumulative_length, layer.keys.shape[2])
            layer.keys, layer.values = (self._fitted(one[rows_B], tokens) for one in (layer.keys, layer.values))

    def _fitted(self, states_BHSD: Tensor, tokens: int) -> Tensor:
        """Keys or values of as many tokens, by more or less padding."""
        missing = tokens - states_BHSD.shape[2]
        if not missing:
            return states_BHSD
        virtual, text = states_BHSD[:, :, : self._virtual], states_BHSD[:, :, self._virtual :]
        if missing < 0:
            return torch.cat([virtual, text[:, :, -missing:]], 2)
        rows, heads, _, size = text.shape
        return torch.cat([virtual, text.new_zeros(rows, heads, missing, size), text], 2)
