"""Vocabulary-parallel embedding and output layer (Megatron-LM, section 3).

A rank never has the logits of the whole vocabulary: models/kernels/cross_entropy.py says what ranks exchange instead.

Shapes: B batch, T tokens, C width, N batch × tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from models.kernels.cross_entropy import ChunkedCrossEntropy, cross_entropy
from models.transformer import Embedding, Head
from tasks.pretrain.engines.parallel.collectives import AllReduceBackward, AllReduceForward


class VocabParallelEmbedding(nn.Module):
    """The embeddings of this rank's tokens, from `first` on. Tokens of other ranks give zero, so the sum over the ranks
    is the embedding."""

    def __init__(self, layer: Embedding, first: int, group: ProcessGroup) -> None:
        super().__init__()
        self.weight, self.first, self.group, self.scale = layer.weight, first, group, layer.scale

    def forward(self, ids_BT: Tensor) -> Tensor:
        here_BT = ids_BT - self.first
        elsewhere_BT = (here_BT < 0) | (here_BT >= len(self.weight))
        x_BTC = F.embedding(here_BT.masked_fill(elsewhere_BT, 0), self.weight)
        x_BTC = x_BTC.masked_fill(elsewhere_BT[..., None], 0.0)
        summed_BTC: Tensor = AllReduceForward.apply(x_BTC, self.group)  # type: ignore[no-untyped-call]
        return summed_BTC if self.scale == 1.0 else summed_BTC * self.scale


class VocabParallelHead(nn.Module):
    """The mean cross-entropy in nats over targets that are not IGNORED, the same on each rank. Gradients include the
    layer's z-loss."""

    def __init__(self, layer: Head, first: int, group: ProcessGroup) -> None:
        super().__init__()
        self.weight, self.first, self.group, self.z_loss = layer.weight, first, group, layer.z_loss
        self.record: list[Tensor] | None = None

    def forward(self, x_BTC: Tensor, targets_BT: Tensor) -> Tensor:
        x_NC, targets_N = x_BTC.flatten(0, 1), targets_BT.flatten()
        if not torch.is_grad_enabled():
            return cross_entropy(x_NC, self.weight, targets_N, first=self.first, group=self.group, record=self.record)
        x_NC = AllReduceBackward.apply(x_NC, self.group)  # type: ignore[no-untyped-call]
        loss: Tensor = ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
            x_NC, self.weight, targets_N, self.z_loss, self.first, self.group
        )
        return loss
