"""NEFTune: noise on the embeddings in training (Jain et al. 2023, algorithm 1).

A conversation of L tokens gets noise that is uniform within ±alpha/√(L·C). Here it is drawn from the seed and the
conversation's place in the order of training, so that processes, micro-batches, packing and resumes don't change it.
transformers' hook draws from the global generator, which gives the same numbers on every process. As L it takes the
padded length of a micro-batch, or that of all conversations in a row.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tasks.posttrain.attention import apart

Segments = Sequence[Sequence[tuple[int, int]]]  # for each row, the places and lengths of its conversations


class EmbeddingNoise:
    """Adds noise to a model's embeddings while it is trained. `segments` are those of the next forward pass."""

    def __init__(self, embedding: nn.Module, alpha: float, seed: int) -> None:
        self.alpha, self.seed = alpha, seed
        self.segments: Segments = ()
        # A compiled graph would treat the segments as constants
        embedding.register_forward_hook(torch.compiler.disable(self._add))

    def _add(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if not module.training:
            return output
        shared = apart.shared
        if shared is None:
            return output + self.of(self.segments, output)
        rows, tokens = shared.positions_BT.shape
        whole = output.new_empty(()).expand(rows, tokens, output.shape[-1])
        return output + self.of(self.segments, whole)[:, shared.span]

    def of(self, segments: Segments, like_BTC: Tensor) -> Tensor:
        """The noise for a batch (B, T, C), with 0 on padding."""
        noise_BTC = torch.zeros_like(like_BTC, requires_grad=False)
        width = like_BTC.shape[-1]
        for number, row in enumerate(segments):
            start = 0
            for place, length in row:
                bound = self.alpha / math.sqrt(length * width)
                drawn_TC = torch.rand(
                    (length, width), generator=self._generator(place, like_BTC.device), device=like_BTC.device
                )
                noise_BTC[number, start : start + length] = (2 * drawn_TC - 1) * bound
                start += length
        return noise_BTC

    def _generator(self, place: int, device: torch.device) -> torch.Generator:
        digest = hashlib.sha256(f"noise {self.seed} {place}".encode()).digest()
        return torch.Generator(device).manual_seed(int.from_bytes(digest[:7]))
