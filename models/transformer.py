"""One decoder-only transformer for three families: GPT-2, LLaMA and Mistral.

A plain module, so that DeepSpeed, FSDP, torch.compile and a reader all see the same thing: no cache, no dropout,
no buffers (so it builds on the meta device and nothing but parameters needs saving). Weights convert to and from
transformers one to one (`models/convert.py`), and the logits agree with it.

Shape suffixes: B batch, T tokens, C width, H heads, K heads of queries and keys together, D head size,
F feed-forward, V vocabulary, N batch × tokens flattened.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from models.presets import LOSS_CHUNK, ModelShape, Recompute

IGNORED = -100  # a target that carries no loss, as in torch.nn.functional.cross_entropy
INIT_STD = 0.02  # GPT-2, section 2.3, and LLaMA
_ATEN = torch.ops.aten
# What selective recomputation keeps: all that costs more than a pass over memory. Each device has its own attention.
MATRIX_PRODUCTS = [
    _ATEN.mm.default,
    _ATEN.addmm.default,
    _ATEN.bmm.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_cudnn_attention.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
]


class Linear(nn.Linear):
    """A linear layer left unfilled when built: `Transformer.initialise` fills all weights once, in one order."""

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """A table left unfilled when built, as `Linear`."""

    def reset_parameters(self) -> None:
        pass


class Head(Linear):
    """The output layer: logits, or the loss itself, so that the logits of a whole batch need never exist.

    `z_loss` adds its weight × log² Z to what is learned, not to the loss that is returned (PaLM, section 5).
    """

    z_loss = 0.0

    def forward(self, x_BTC: Tensor, targets_BT: Tensor | None = None) -> Tensor:
        """Logits (B, T, V), or with targets the mean cross-entropy in nats over those that are not IGNORED."""
        if targets_BT is None:
            return F.linear(x_BTC, self.weight)
        x_NC, targets_N = x_BTC.flatten(0, 1), targets_BT.flatten()
        if torch.is_grad_enabled():
            return ChunkedCrossEntropy.apply(x_NC, self.weight, targets_N, self.z_loss)  # type: ignore[no-untyped-call]
        return _cross_entropy(x_NC, self.weight, targets_N, None, None)


class ChunkedCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of `x_NC @ weight_VC.T`, a chunk of tokens at a time; its gradient is that of the
    cross-entropy + `z_loss` × log² Z, Z being what the softmax divides by.

    The gradient with respect to the logits is known as soon as the logits are, so the forward pass computes both
    gradients chunk by chunk and drops the logits: the same three matrix products as the plain way, without (N, V)
    in memory (Hsu et al. 2024, Liger Kernel, section 3.2). In float16 they are divided by the number of tokens only
    with the gradient that comes back, which bears the loss scale: before, most would round to 0.
    """

    @staticmethod
    def forward(ctx: Any, x_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, z_loss: float) -> Tensor:
        dx_NC = torch.empty_like(x_NC) if x_NC.requires_grad else None
        # Summed over chunks in float32: in bf16 the small late terms would be rounded away.
        dweight_VC = torch.zeros_like(weight_VC, dtype=torch.float32) if weight_VC.requires_grad else None
        kind = x_NC.device.type
        half = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_NC.dtype
        ctx.divisor = (targets_N != IGNORED).sum() if half == torch.float16 else None
        loss = _cross_entropy(x_NC, weight_VC, targets_N, dx_NC, dweight_VC, z_loss, divided=ctx.divisor is None)
        ctx.dx_NC, ctx.dweight_VC, ctx.dtype, ctx.given = dx_NC, dweight_VC, weight_VC.dtype, False
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        if ctx.given:
            raise RuntimeError("a second backward pass through one loss: its gradients are gone, compute it again")
        if ctx.divisor is not None:
            dloss = dloss / ctx.divisor
        # Scaled in place and let go: a copy of the head's would be as large as the head
        dx_NC = None if ctx.dx_NC is None else ctx.dx_NC.mul_(dloss)
        dweight_VC = None if ctx.dweight_VC is None else ctx.dweight_VC.mul_(dloss).to(ctx.dtype)
        ctx.dx_NC, ctx.dweight_VC, ctx.given = None, None, True
        return dx_NC, dweight_VC, None, None


def _cross_entropy(
    x_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, dx_NC: Tensor | None, dweight_VC: Tensor | None,
    z_loss: float = 0.0, *, divided: bool = True,
) -> Tensor:  # fmt: skip
    """Mean loss; fills `dx_NC` and adds to `dweight_VC` where given, as gradients of the mean or, not `divided`, of the
    sum. With no target at all: NaN, as torch's."""
    kept_N = targets_N != IGNORED
    count = kept_N.sum()
    total = torch.zeros((), dtype=torch.float32, device=x_NC.device)
    for start in range(0, len(x_NC), LOSS_CHUNK):
        part = slice(start, start + LOSS_CHUNK)
        safe_N1 = targets_N[part].clamp(min=0)[:, None]
        logits_NV = F.linear(x_NC[part], weight_VC)
        half, logits_NV = logits_NV.dtype, logits_NV.float()  # under autocast another than that of x
        logp_NV = F.log_softmax(logits_NV, dim=-1)
        log_z_N1 = (logits_NV[:, :1] - logp_NV[:, :1]) if z_loss else None
        del logits_NV
        total -= (logp_NV.gather(1, safe_N1)[:, 0] * kept_N[part]).sum()
        if dx_NC is None and dweight_VC is None:
            continue
        dlogits_NV = logp_NV.exp_()
        if log_z_N1 is not None:
            dlogits_NV *= 1 + 2 * z_loss * log_z_N1
        dlogits_NV.scatter_add_(1, safe_N1, torch.full_like(safe_N1, -1, dtype=torch.float32))
        dlogits_NV *= (kept_N[part] / count if divided else kept_N[part])[:, None]
        dlogits_NV = dlogits_NV.to(half)
        if dx_NC is not None:
            dx_NC[part] = dlogits_NV @ weight_VC
        if dweight_VC is not None and half == torch.float32:
            dweight_VC.addmm_(dlogits_NV.T, x_NC[part])
        elif dweight_VC is not None:
            dweight_VC += dlogits_NV.T @ x_NC[part]
        del logp_NV, dlogits_NV  # else they would live beside the next chunk's
    return total / count


def rotary(tokens: int, head_dim: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine (T, 1, D/2) of each position's angles (Su et al. 2021), in the precision of `like`."""
    exponents = torch.arange(0, head_dim, 2, device=like.device, dtype=torch.float32) / head_dim
    positions = torch.arange(tokens, device=like.device, dtype=torch.float32)
    angles = torch.outer(positions, theta**-exponents)[:, None, :]
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x_BTKD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each head's two halves by the angle of their position: the layout that transformers uses."""
    left, right = x_BTKD.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def window_mask(tokens: int, window: int, device: torch.device) -> Tensor:
    """(T, T), True where query i sees key j: i - window < j <= i (Mistral 7B, section 2)."""
    positions = torch.arange(tokens, device=device)
    distance = positions[:, None] - positions[None, :]
    return (distance >= 0) & (distance < window)


def document_mask(positions_BT: Tensor, window: int | None) -> Tensor:
    """(B, 1, T, T), True where query i may see key j: not later, in the same document (each begins at position 0), and
    within a sliding window if there is one."""
    document_BT = (positions_BT == 0).cumsum(1)
    tokens = positions_BT.shape[1]
    near_TT = window_mask(tokens, window or tokens, positions_BT.device)
    return (near_TT & (document_BT[:, :, None] == document_BT[:, None, :]))[:, None]


def additive(mask: Tensor, like: Tensor) -> Tensor:
    """A mask of truth values as the numbers to add to the scores, in the precision that attention will run in.

    Attention would make these itself, but anew in each block, and keep each copy for the backward pass.
    """
    kind = like.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -math.inf)


class Attention(nn.Module):
    """Causal self-attention; `kv_heads` below `heads` share keys and values (Ainslie et al. 2023)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        bias = shape.family == "gpt2"
        self.qkv = Linear(shape.width, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, bias=bias)
        self.output = Linear(shape.width, shape.width, bias=bias)

    def forward(self, x_BTC: Tensor, angles: tuple[Tensor, Tensor] | None, mask: Tensor | None) -> Tensor:
        """(B, T, C) to (B, T, C). `angles` from `rotary`, None for learned positions; no mask, (T, T) or (B, 1, T, T),
        means causal."""
        batch, tokens, _ = x_BTC.shape
        qkv = self.qkv(x_BTC).view(batch, tokens, -1, self.head_dim)
        qk_BTKD, v_BTHD = qkv.split((self.heads + self.kv_heads, self.kv_heads), dim=2)
        if angles is not None:
            qk_BTKD = rotate(qk_BTKD, *angles)
        q_BTHD, k_BTHD = qk_BTKD.split((self.heads, self.kv_heads), dim=2)
        grouped = self.kv_heads != self.heads
        if grouped and mask is not None and x_BTC.is_cuda:
            # There only the flash kernel knows groups, and it takes no mask: the plain way would keep (B, H, T, T)
            k_BTHD, v_BTHD = (part.repeat_interleave(self.heads // self.kv_heads, dim=2) for part in (k_BTHD, v_BTHD))
            grouped = False
        y_BHTD = F.scaled_dot_product_attention(
            q_BTHD.transpose(1, 2),
            k_BTHD.transpose(1, 2),
            v_BTHD.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=grouped,
        )
        return self.output(y_BHTD.transpose(1, 2).reshape(batch, tokens, -1))


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020) for LLaMA and Mistral, tanh-approximated GELU for GPT-2."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gated = shape.gated
        self.up = Linear(shape.width, shape.feed_forward * (2 if self.gated else 1), bias=not self.gated)
        self.down = Linear(shape.feed_forward, shape.width, bias=not self.gated)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        if not self.gated:
            return self.down(F.gelu(self.up(x_BTC), approximate="tanh"))
        gate_BTF, up_BTF = self.up(x_BTC).chunk(2, dim=-1)
        return self.down(F.silu(gate_BTF) * up_BTF)


def _norm(shape: ModelShape) -> nn.Module:
    kind = nn.LayerNorm if shape.family == "gpt2" else nn.RMSNorm
    return kind(shape.width, eps=shape.norm_eps)


class Block(nn.Module):
    """Pre-norm residual block: attention, then feed-forward."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm, self.attention = _norm(shape), Attention(shape)
        self.feed_forward_norm, self.feed_forward = _norm(shape), FeedForward(shape)

    def forward(self, x_BTC: Tensor, angles: tuple[Tensor, Tensor] | None, mask: Tensor | None) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC), angles, mask)
        return x_BTC + self.feed_forward(self.feed_forward_norm(x_BTC))


class Transformer(nn.Module):
    """The whole model.

    `recompute` trades work in the backward pass for memory, and changes no bit of a gradient: "full" keeps each
    block's input and runs its forward pass again (Chen et al. 2016); "selective" keeps what matrix products and
    attention gave, and makes only the cheap rest again (in the spirit of Korthikanti et al. 2022).
    """

    def __init__(
        self, shape: ModelShape, generator: torch.Generator | None = None, *, mup_base_width: int | None = None
    ) -> None:
        super().__init__()
        self.shape = shape
        self.recompute: Recompute = "none"
        self.embedding = Embedding(shape.vocab_size, shape.width)
        self.positions = Embedding(shape.context, shape.width) if shape.family == "gpt2" else None
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm = _norm(shape)
        self.head = Head(shape.width, shape.vocab_size, bias=False)
        if shape.tie_embeddings:
            self.head.weight = self.embedding.weight
        self.initialise(generator, mup_base_width=mup_base_width)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None = None, *, mup_base_width: int | None = None) -> None:
        """Fill all weights: N(0, 0.02), divided by sqrt(2 × depth) where a layer writes into the residual stream
        (GPT-2, section 2.3); biases 0, norm scales 1. Same generator state, same weights; None is torch's own.

        With muP's base width (Yang et al. 2022, table 8) the blocks' matrices are divided by the root of width / base,
        and the output by width / base. That multiplier stands in the scale of the last norm, where every runtime
        applies it, whether the head is tied or not; Adam's rate for it is divided likewise, which is the same.
        """
        wider = self.shape.width / mup_base_width if mup_base_width else 1.0
        residual_std = INIT_STD / math.sqrt(2 * self.shape.depth)
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1 / wider if name == "norm.weight" else 1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                std = residual_std if name.endswith(("output.weight", "down.weight")) else INIT_STD
                if name.startswith("blocks."):
                    std /= math.sqrt(wider)
                parameter.normal_(0.0, std, generator=generator)

    def forward(self, ids_BT: Tensor, targets_BT: Tensor | None = None, positions_BT: Tensor | None = None) -> Tensor:
        """Logits (B, T, V); with targets (already shifted, IGNORED for none) the mean loss in nats instead.

        With positions, each counted from the start of its document, a row may hold several documents that don't see
        each other: the logits of each are as if it stood alone (Llama 3, section 3.2). Raises ValueError for more
        tokens than the model's context.
        """
        x_BTC = self._hidden(ids_BT, positions_BT)
        return self.head(x_BTC, targets_BT)

    def _hidden(self, ids_BT: Tensor, positions_BT: Tensor | None = None) -> Tensor:
        shape, tokens = self.shape, ids_BT.shape[1]
        if tokens > shape.context:
            raise ValueError(f"{tokens} tokens don't fit into the model's context of {shape.context}")
        x_BTC = self.embedding(ids_BT)
        if self.positions is not None:
            positions = torch.arange(tokens, device=ids_BT.device) if positions_BT is None else positions_BT
            x_BTC = x_BTC + self.positions(positions)
        angles = None if shape.rope_theta is None else rotary(tokens, shape.head_dim, shape.rope_theta, x_BTC)
        if angles is not None and positions_BT is not None:
            angles = angles[0][positions_BT], angles[1][positions_BT]
        narrow = shape.sliding_window is not None and shape.sliding_window < tokens
        mask = window_mask(tokens, shape.sliding_window or 0, ids_BT.device) if narrow else None
        if positions_BT is not None:
            mask = document_mask(positions_BT, shape.sliding_window)
        if mask is not None:
            mask = additive(mask, x_BTC)
        selective = partial(create_selective_checkpoint_contexts, MATRIX_PRODUCTS)
        contexts = selective if self.recompute == "selective" else noop_context_fn
        for block in self.blocks:
            if self.recompute == "none" or not torch.is_grad_enabled():
                x_BTC = block(x_BTC, angles, mask)
            else:
                x_BTC = checkpoint(block, x_BTC, angles, mask, use_reentrant=False, context_fn=contexts)
        return self.norm(x_BTC)

    def num_parameters(self) -> int:
        """Parameters of the built module; a tied matrix counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @torch.no_grad()
    def generate(
        self,
        ids_BT: Tensor,
        new_tokens: int,
        *,
        temperature: float = 0.0,
        stop: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """`ids_BT` with up to `new_tokens` more: the likeliest at temperature 0, else sampled.

        For samples during training: each token costs a whole forward pass over the last `context` tokens.
        Ends early when every row's newest token is `stop`.
        """
        for _ in range(new_tokens):
            logits_BV = self.head(self._hidden(ids_BT[:, -self.shape.context :])[:, -1])
            if temperature == 0.0:
                next_B1 = logits_BV.argmax(dim=-1, keepdim=True)
            else:
                next_B1 = torch.multinomial((logits_BV.float() / temperature).softmax(-1), 1, generator=generator)
            ids_BT = torch.cat((ids_BT, next_B1), dim=1)
            if stop is not None and bool((next_B1 == stop).all()):
                break
        return ids_BT
