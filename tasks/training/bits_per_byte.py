"""Bits per byte on token shards, a score that is comparable across tokenizers.

Shapes: B windows, T tokens of context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.kernels.cross_entropy import IGNORED
from storage.shards.token_stream import Stretches, TokenStream

WINDOWS = 8  # per forward pass


@dataclass(frozen=True)
class Likelihood:
    """The mean loss over `tokens` targets, which encode `text_bytes` bytes of text."""

    nats_per_token: float
    tokens: int
    text_bytes: float

    @property
    def bits_per_byte(self) -> float:
        """The loss per byte of text: comparable across tokenizers."""
        return self.nats_per_token * self.tokens / math.log(2) / self.text_bytes

    @property
    def perplexity(self) -> float:
        """exp of the loss per token: comparable only between models with the same tokenizer."""
        return math.exp(self.nats_per_token)


@torch.no_grad()
def likelihood(
    loss: Callable[[Tensor, Tensor], Tensor], stream: TokenStream, *, context: int, max_tokens: int | None = None
) -> Likelihood:
    """The mean of `loss(ids_BT, targets_BT)` (nats per token) over the stream, or over `max_tokens` spread over it.

    Windows don't overlap. The bytes are those of the stream, in proportion to the measured tokens.
    """
    nats, tokens = 0.0, 0
    windows = spread_windows(stream, context, max_tokens)
    for start in range(0, len(windows), WINDOWS):
        part = windows[start : start + WINDOWS]
        ids_BT, targets_BT = read_windows(stream, part, context, len(part))
        count = int((targets_BT != IGNORED).sum())
        nats += float(loss(ids_BT, targets_BT)) * count
        tokens += count
    return Likelihood(nats / tokens, tokens, stream.text_bytes * tokens / stream.tokens)


def spread_windows(stream: Stretches, context: int, max_tokens: int | None) -> list[int]:
    """Indices of the windows to measure: all, or evenly spread ones with `max_tokens` in total."""
    windows = max(1, math.ceil((stream.tokens - 1) / context))
    chosen = windows if max_tokens is None else min(windows, max(1, max_tokens // context))
    return [number * windows // chosen for number in range(chosen)]


def read_windows(stream: Stretches, windows: Sequence[int], context: int, rows: int) -> tuple[Tensor, Tensor]:
    """Ids and targets (rows, T). Padding at the stream's end and in missing rows bears no loss."""
    ids = np.zeros((rows, context), np.int64)
    targets = np.full((rows, context), IGNORED, np.int64)
    for row, window in enumerate(windows):
        tokens = stream.read(window * context, context + 1)
        ids[row, : len(tokens) - 1], targets[row, : len(tokens) - 1] = tokens[:-1], tokens[1:]
    return torch.from_numpy(ids), torch.from_numpy(targets)
