"""One decoder for three families: GPT-2, LLaMA and Mistral differ in a few lines, so they share the rest.

| family  | positions        | normalisation | feed-forward | attention                        |
|---------|------------------|---------------|--------------|----------------------------------|
| gpt2    | learned          | LayerNorm     | GELU (tanh)  | multi-head, biases everywhere    |
| llama   | rotary           | RMSNorm       | SwiGLU       | grouped-query                    |
| mistral | rotary           | RMSNorm       | SwiGLU       | grouped-query, sliding window    |

Shapes: B batch, T tokens, C width, H heads, K key-value heads, D head width, V vocabulary, N = B·T.
Sources: Radford et al. 2019; Touvron et al. 2023; Jiang et al. 2023; Su et al. 2021 (RoPE); Shazeer 2020 (SwiGLU).
"""

from __future__ import annotations

import math
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.presets import ModelShape

IGNORED = -100  # a target that bears no loss
LOSS_CHUNK = 1024  # positions whose logits are held at once
INIT_STD = 0.02


class RMSNorm(nn.Module):
    """Zhang & Sennrich 2019: scale by the root mean square, computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x_BTC: Tensor) -> Tensor:
        """(B, T, C) → (B, T, C)."""
        return F.rms_norm(x_BTC, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Causal self-attention with grouped key-value heads; rotary positions where the family has them."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        bias = shape.family == "gpt2"
        self.shape = shape
        self.q = nn.Linear(shape.width, shape.heads * shape.head_width, bias=bias)
        self.k = nn.Linear(shape.width, shape.kv_heads * shape.head_width, bias=bias)
        self.v = nn.Linear(shape.width, shape.kv_heads * shape.head_width, bias=bias)
        self.out = nn.Linear(shape.width, shape.width, bias=bias)

    def forward(self, x_BTC: Tensor, rotary: tuple[Tensor, Tensor] | None, mask_TT: Tensor | None) -> Tensor:
        """(B, T, C) → (B, T, C); `mask_TT` replaces the causal mask where a window narrows it."""
        shape, (B, T, _) = self.shape, x_BTC.shape
        q_BHTD = self.q(x_BTC).view(B, T, shape.heads, shape.head_width).transpose(1, 2)
        k_BKTD = self.k(x_BTC).view(B, T, shape.kv_heads, shape.head_width).transpose(1, 2)
        v_BKTD = self.v(x_BTC).view(B, T, shape.kv_heads, shape.head_width).transpose(1, 2)
        if rotary is not None:
            q_BHTD, k_BKTD = rotate(q_BHTD, *rotary), rotate(k_BKTD, *rotary)
        y_BHTD = F.scaled_dot_product_attention(
            q_BHTD, k_BKTD, v_BKTD, mask_TT, is_causal=mask_TT is None, enable_gqa=shape.kv_heads != shape.heads
        )
        return self.out(y_BHTD.transpose(1, 2).reshape(B, T, shape.width))


class FeedForward(nn.Module):
    """GELU for gpt2; SwiGLU, with its gate, for the others."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        gated = shape.family != "gpt2"
        self.gate = nn.Linear(shape.width, shape.feed_forward, bias=False) if gated else None
        self.up = nn.Linear(shape.width, shape.feed_forward, bias=not gated)
        self.down = nn.Linear(shape.feed_forward, shape.width, bias=not gated)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """(B, T, C) → (B, T, C)."""
        if self.gate is None:
            return self.down(F.gelu(self.up(x_BTC), approximate="tanh"))
        return self.down(F.silu(self.gate(x_BTC)) * self.up(x_BTC))


class Block(nn.Module):
    """Pre-norm residual block."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = _norm(shape)
        self.attention = Attention(shape)
        self.feed_forward_norm = _norm(shape)
        self.feed_forward = FeedForward(shape)

    def forward(self, x_BTC: Tensor, rotary: tuple[Tensor, Tensor] | None, mask_TT: Tensor | None) -> Tensor:
        """(B, T, C) → (B, T, C)."""
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC), rotary, mask_TT)
        return x_BTC + self.feed_forward(self.feed_forward_norm(x_BTC))


class Transformer(nn.Module):
    """The decoder. Weights are drawn from torch's global generator: seed it before building."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width) if shape.family == "gpt2" else None
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm = _norm(shape)
        self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        if shape.tie_embeddings:
            self.head.weight = self.embedding.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal(0, 0.02), biases 0; what writes into the residual stream scaled by 1/√(2·depth) (GPT-2, §2.3)."""
        residual = INIT_STD / math.sqrt(2 * self.shape.depth)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                writes = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
                nn.init.normal_(parameter, std=residual if writes else INIT_STD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def hidden(self, ids_BT: Tensor) -> Tensor:
        """(B, T) ids → (B, T, C), after the last normalisation."""
        T = ids_BT.shape[1]
        x_BTC = self.embedding(ids_BT)
        rotary = None
        if self.positions is not None:
            x_BTC = x_BTC + self.positions(torch.arange(T, device=ids_BT.device))
        else:
            rotary = rotary_tables(T, self.shape.head_width, self.shape.rope_theta, x_BTC)
        mask_TT = self._window_mask(T, ids_BT.device)
        for block in self.blocks:
            x_BTC = block(x_BTC, rotary, mask_TT)
        return self.norm(x_BTC)

    def forward(self, ids_BT: Tensor, targets_BT: Tensor | None = None) -> Tensor:
        """Logits (B, T, V); or, with targets, the mean cross-entropy in nats over the targets that count.

        The loss never holds the logits of more than `LOSS_CHUNK` positions: at a 4k vocabulary they are the largest
        tensor of a small model.
        """
        x_BTC = self.hidden(ids_BT)
        if targets_BT is None:
            return self.head(x_BTC)
        x_NC, targets_N = x_BTC.flatten(0, 1), targets_BT.flatten()
        total = x_NC.new_zeros((), dtype=torch.float32)
        for chunk_C, chunk in zip(x_NC.split(LOSS_CHUNK), targets_N.split(LOSS_CHUNK), strict=True):
            logits = self.head(chunk_C).float()
            total = total + F.cross_entropy(logits, chunk, ignore_index=IGNORED, reduction="sum")
        return total / (targets_N != IGNORED).sum()

    def _window_mask(self, T: int, device: torch.device) -> Tensor | None:
        """True where a token may look: itself and the `sliding_window − 1` before it; None when that is causal."""
        window = self.shape.sliding_window
        if window is None or window >= T:
            return None
        at = torch.arange(T, device=device)
        distance_TT = at[:, None] - at[None, :]
        return (distance_TT >= 0) & (distance_TT < window)

    def parameter_groups(self, weight_decay: float) -> list[dict[str, object]]:
        """Matrices decay; vectors (norms, biases) do not. Each parameter once, tied ones too."""
        matrices = [p for p in self.parameters() if p.ndim >= 2]
        vectors = [p for p in self.parameters() if p.ndim < 2]
        return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]

    @torch.no_grad()
    def generate(self, ids: list[int], tokens: int, *, temperature: float = 0.0, eos_id: int | None = None) -> list[int]:
        """`ids` and up to `tokens` more: greedy at temperature 0, else sampled from torch's global generator."""
        for _ in range(tokens):
            window = torch.tensor([ids[-self.shape.context :]], device=self.embedding.weight.device)
            logits_V = self.head(self.hidden(window)[:, -1])[0].float()
            if temperature:
                following = int(torch.multinomial(F.softmax(logits_V / temperature, -1), 1))
            else:
                following = int(logits_V.argmax())
            if following == eos_id:
                break
            ids = [*ids, following]
        return ids


def rotary_tables(T: int, head_width: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines (T, D), halves repeated as in the LLaMA release of transformers; computed in float32."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_width, 2, device=like.device, dtype=torch.float32) / head_width)
    angles = torch.outer(torch.arange(T, device=like.device, dtype=torch.float32), frequencies)
    angles_TD = torch.cat((angles, angles), dim=-1)
    return angles_TD.cos().to(like.dtype), angles_TD.sin().to(like.dtype)


def rotate(x_BHTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021) over halves: (B, H, T, D) → the same."""
    first, second = x_BHTD.chunk(2, dim=-1)
    return x_BHTD * cos_TD + torch.cat((-second, first), dim=-1) * sin_TD



def _norm(shape: ModelShape) -> nn.Module:
    if shape.family == "gpt2":
        return nn.LayerNorm(shape.width, eps=shape.norm_eps)
    return RMSNorm(shape.width, shape.norm_eps)
