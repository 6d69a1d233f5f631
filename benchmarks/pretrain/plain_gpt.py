"""A minimal GPT-2: the model of the peer `plain loop`, without any of our code.

Separate modules, one matrix for q, k and v, scaled_dot_product_attention, the logits of the whole batch at once.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.pretrain.sizes import Size


class Block(nn.Module):
    """Attention and a feed-forward layer, each after its norm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.attention, self.project = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)
        self.gelu = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        batch, tokens, width = x.shape
        query, key, value = self.attention(self.norm_1(x)).split(width, dim=2)
        split = (batch, tokens, self.heads, width // self.heads)
        query, key, value = (part.view(split).transpose(1, 2) for part in (query, key, value))
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).contiguous().view(batch, tokens, width))
        added: Tensor = self.down(self.gelu(self.up(self.norm_2(x))))
        return x + added


class PlainGpt(nn.Module):
    """Learned positions, tied embeddings."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(size.vocab, size.width), nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.depth))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocab, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if name.endswith(("project.weight", "down.weight")):
                nn.init.normal_(parameter, 0.0, 0.02 / math.sqrt(2 * size.depth))
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, 0.0, 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """The mean loss."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))
