"""Computes the common beginning of a batch's prompts, such as their examples, once.

The padding of a batch moves behind the common beginning, so that all rows share its keys and values. Positions follow
from the mask, so each row is computed as if it were the only one.

Shapes: B prompts, T tokens, S of them shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel

LEAST_SAVED = 64  # minimum tokens of a batch to save
KEPT = 0.9  # a computed beginning is used for another one if it has at least this share of its length


class Batch(NamedTuple):
    """Prompts whose first `shared` tokens are computed."""

    ids_BT: Tensor
    mask_BT: Tensor
    shared: int


class Beginnings:
    """The last computed beginning, as batches of a benchmark have the same examples."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.ids: list[int] = []
        self.layers: list[tuple[Tensor, Tensor]] = []

    def of(self, ids_BT: Tensor, mask_BT: Tensor) -> Batch | None:
        """The same prompts, which come padded on the left, with their common beginning computed. None if that saves too
        little.
        At least the last token of each prompt remains."""
        rows = [row[mask.bool()].tolist() for row, mask in zip(ids_BT, mask_BT, strict=True)]
        shared = self._known(_common(rows)[: min(map(len, rows)) - 1])
        if len(shared) * (len(rows) - 1) < LEAST_SAVED:
            return None
        if shared != self.ids[: len(shared)]:
            self._compute(shared)
        return Batch(*_after(shared, rows, ids_BT), len(shared))

    def forget(self) -> None:
        """Free the memory of the last beginning."""
        self.ids, self.layers = [], []

    def _known(self, shared: list[int]) -> list[int]:
        """The computed beginning, if it begins `shared` and is almost as long, else `shared` itself."""
        kept = len(self.ids)
        return self.ids if KEPT * len(shared) <= kept <= len(shared) and shared[:kept] == self.ids else shared

    @torch.no_grad()
    def _compute(self, shared: list[int]) -> None:
        whole: Any = self.model
        output = whole(input_ids=torch.tensor([shared], device=self.model.device), use_cache=True, logits_to_keep=1)
        self.ids = shared
        self.layers = [(layer.keys, layer.values) for layer in output.past_key_values.layers]

    def cache(self, length: int, rows: int) -> DynamicCache:
        """A cache of the beginning's first `length` tokens for `rows` prompts. Generation from it changes it."""
        from transformers import DynamicCache

        parts = [
            (keys[:, :, :length].expand(rows, -1, -1, -1), values[:, :, :length].expand(rows, -1, -1, -1))
            for keys, values in self.layers
        ]
        return DynamicCache(parts, config=self.model.config)


def _common(rows: list[list[int]]) -> list[int]:
    """The common beginning of all rows. Of sorted rows, the first and the last differ the most."""
    pairs = zip(min(rows), max(rows), strict=False)
    return [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]


def _after(shared: Sequence[int], rows: Sequence[Sequence[int]], ids_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Ids and mask with the padding behind the beginning."""
    length, width = len(shared), ids_BT.shape[1]
    ids = [[*shared, *[0] * (width - len(row)), *row[length:]] for row in rows]
    mask = [[*[1] * length, *[0] * (width - len(row)), *[1] * (len(row) - length)] for row in rows]
    return torch.tensor(ids, device=ids_BT.device), torch.tensor(mask, device=ids_BT.device)
