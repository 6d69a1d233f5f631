"""One decoder-only transformer for seven families: GPT-2, LLaMA, Mistral, Qwen3, Qwen3-MoE, Gemma 3 and OLMo 3.

A plain module that DeepSpeed, FSDP and torch.compile can all handle: no KV cache, no dropout, and no buffers, so that
it can be built on the meta device, and only parameters need saving. Weights convert to and from transformers
(`models/convert.py`), with the same logits.

Shapes: B batch, T tokens, C width, H heads, K heads of queries and keys together, D head size, F feed-forward,
V vocabulary, N batch × tokens flattened.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from models.kernels.attention import Mask, attend, attention_of_documents, for_any_shape, mask_of, rotary, rotate
from models.kernels.cross_entropy import IGNORED, ChunkedCrossEntropy, cross_entropy
from models.kernels.experts import Experts
from models.kernels.grouped import GROUPED_PRODUCT
from models.kernels.rope_scaling import RopeScaling
from models.presets import ModelShape, Recompute, Shape

Passed = Tensor | tuple[Tensor, Tensor]  # a hidden state, of experts with the losses of their router
Attend = Callable[[Tensor, Tensor, Tensor, Mask], Tensor]  # queries, keys and values (B, T, H, D) to (B, T, H, D)
INIT_STD = 0.02  # GPT-2, section 2.3, and LLaMA
_ATEN = torch.ops.aten
# The operations that selective recomputation saves: all compute-bound operations. Attention kernels differ by device.
MATRIX_PRODUCTS = [
    _ATEN.mm.default,
    _ATEN.addmm.default,
    _ATEN.bmm.default,
    GROUPED_PRODUCT,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_cudnn_attention.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
]


class Linear(nn.Linear):
    """A linear layer without its own initialisation: `Transformer.initialise` sets all weights once, in one order."""

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """An embedding without its own initialisation, as `Linear`. It is multiplied by `scale`."""

    scale = 1.0  # Gemma's is the root of the width

    def reset_parameters(self) -> None:
        pass

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTC = super().forward(ids_BT)
        return x_BTC if self.scale == 1.0 else x_BTC * self.scale


class Head(Linear):
    """The output layer: logits, or the loss itself, so that the logits of a whole batch are never materialised.

    `z_loss` is the weight of log² Z in the gradients. The returned loss excludes it (PaLM, section 5). A list in
    `record` gets the losses of tokens by themselves, as `cross_entropy` says, when no gradients are computed.
    """

    z_loss = 0.0
    record: list[Tensor] | None = None

    def forward(self, x_BTC: Tensor, targets_BT: Tensor | None = None) -> Tensor:
        """Logits (B, T, V), or with targets the mean cross-entropy in nats over those that are not IGNORED."""
        if targets_BT is None:
            return F.linear(x_BTC, self.weight)
        x_NC, targets_N = x_BTC.flatten(0, 1), targets_BT.flatten()
        if torch.is_grad_enabled():
            return ChunkedCrossEntropy.apply(x_NC, self.weight, targets_N, self.z_loss)  # type: ignore[no-untyped-call]
        return cross_entropy(x_NC, self.weight, targets_N, record=self.record)


class ZeroCentredNorm(nn.RMSNorm):
    """RMSNorm whose scale is 1 + its weight (Gemma), so that 16 bits hold small changes of it."""

    def forward(self, x_BTC: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        return F.rms_norm(x_BTC, self.normalized_shape, (1 + self.weight.float()).to(x_BTC.dtype), self.eps)


class HeadNorm(nn.Module):
    """RMSNorm of queries, or of keys: of each head with the same weight for all (Qwen3, Gemma 3), or of all heads
    together (OLMo 3). The result is multiplied by `gain`."""

    def __init__(self, shape: ModelShape, size: int, gain: float = 1.0) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), shape.norm_eps
        self.zero_centred, self.gain = shape.zero_centred, gain

    def forward(self, x_BTHD: Tensor) -> Tensor:
        """(B, T, H, D) to (B, T, H, D)."""
        return self.normalised(x_BTHD, self.weight)

    def normalised(self, x_BTHD: Tensor, weight: Tensor) -> Tensor:
        """As `forward`, with this weight. Under autocast torch fuses it only in the precision of `x_BTHD`."""
        if self.zero_centred:
            weight = 1 + weight.float()
        if self.gain != 1.0:
            weight = weight * self.gain
        together = len(weight) != x_BTHD.shape[-1]
        x = x_BTHD.flatten(-2) if together else x_BTHD
        return F.rms_norm(x, weight.shape, weight.to(x.dtype), self.eps).view(x_BTHD.shape)


class Attention(nn.Module):
    """Causal self-attention. Fewer `kv_heads` than `heads` share keys and values (Ainslie et al. 2023)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        bias = shape.family == "gpt2"
        self.qkv = Linear(shape.width, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, bias=bias)
        self.output = Linear(shape.heads_width, shape.width, bias=bias)
        self.q_norm = self.k_norm = None
        if shape.head_norms is not None:
            gain = math.sqrt(shape.head_dim / (shape.query_scalar or shape.head_dim))
            self.q_norm, self.k_norm = HeadNorm(shape, shape.head_norms[0], gain), HeadNorm(shape, shape.head_norms[1])
        self.attend: Attend = attend

    def forward(self, x_BTC: Tensor, angles: tuple[Tensor, Tensor] | None, mask: Mask) -> Tensor:
        """(B, T, C) to (B, T, C). `angles` come from `rotary`, None for learned positions. `mask` is from `mask_of`."""
        batch, tokens, _ = x_BTC.shape
        qkv = self.qkv(x_BTC).view(batch, tokens, -1, self.head_dim)
        qk_BTKD, v_BTHD = qkv.split((self.heads + self.kv_heads, self.kv_heads), dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            q_BTHD, k_BTHD = qk_BTKD.split((self.heads, self.kv_heads), dim=2)
            qk_BTKD = torch.cat((self.q_norm(q_BTHD), self.k_norm(k_BTHD)), dim=2)
        if angles is not None:
            qk_BTKD = rotate(qk_BTKD, *angles)
        q_BTHD, k_BTHD = qk_BTKD.split((self.heads, self.kv_heads), dim=2)
        return self.output(self.attend(q_BTHD, k_BTHD, v_BTHD, mask).reshape(batch, tokens, -1))


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020), but tanh-approximated GELU for GPT-2, and with it as gate for Gemma."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gated = shape.gated
        gelu = functools.partial(F.gelu, approximate="tanh")
        self.activation = gelu if shape.family in ("gpt2", "gemma3") else F.silu
        self.up = Linear(shape.width, shape.feed_forward * (2 if self.gated else 1), bias=not self.gated)
        self.down = Linear(shape.feed_forward, shape.width, bias=not self.gated)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        if not self.gated:
            return self.down(self.activation(self.up(x_BTC)))
        gate_BTF, up_BTF = self.up(x_BTC).chunk(2, dim=-1)
        return self.down(self.activation(gate_BTF) * up_BTF)


def share_of_tokens(tokens: int, share: tuple[int, int]) -> slice:
    """The slice of the i-th of n equal parts. Raises ValueError for tokens that can't be divided evenly."""
    part, parts = share
    if tokens % parts:
        raise ValueError(f"{tokens} tokens can't be divided into {parts} equal parts")
    return slice(tokens // parts * part, tokens // parts * (part + 1))


def writes_to_residual(name: str) -> bool:
    """Whether a parameter of a block is of a layer whose outputs are added to the residual stream."""
    return name.rpartition(".")[0].endswith(("attention.output", "feed_forward.down"))


def _norm(shape: ModelShape) -> nn.Module:
    kind = nn.LayerNorm if shape.family == "gpt2" else ZeroCentredNorm if shape.zero_centred else nn.RMSNorm
    return kind(shape.width, eps=shape.norm_eps)


def keeping_products() -> Any:
    """What selective recomputation saves, as `checkpoint` takes it."""
    return create_selective_checkpoint_contexts([*MATRIX_PRODUCTS, *attention_of_documents()])


class Block(nn.Module):
    """Residual block: attention, then feed-forward, each with a norm before it, after it, or both. Experts in the place
    of a feed-forward layer return the losses (B,) of their router too. `recompute` is as in Transformer, but inside the
    block, so that it is compiled with it. `sight` is that of the layer in the shape."""

    recompute: Recompute = "none"

    def __init__(self, shape: ModelShape, layer: int) -> None:
        super().__init__()
        self.sight = shape.sight(layer)
        self.attention_norm = _norm(shape) if shape.pre_norms else None
        self.attention = Attention(shape)
        self.attention_post_norm = _norm(shape) if shape.post_norms else None
        self.feed_forward_norm = _norm(shape) if shape.pre_norms else None
        self.feed_forward = Experts(shape) if shape.experts else FeedForward(shape)
        self.feed_forward_post_norm = _norm(shape) if shape.post_norms else None

    def forward(self, x_BTC: Tensor, angles: tuple[Tensor, Tensor] | None, mask: Mask) -> Passed:
        """(B, T, C) to (B, T, C)."""
        if self.recompute == "none" or not torch.is_grad_enabled():
            return self._forward(x_BTC, angles, mask)
        if self.recompute == "selective":
            return checkpoint(self._forward, x_BTC, angles, mask, use_reentrant=False, context_fn=keeping_products)
        return checkpoint(self._forward, x_BTC, angles, mask, use_reentrant=False)

    def _forward(self, x_BTC: Tensor, angles: tuple[Tensor, Tensor] | None, mask: Mask) -> Passed:
        y_BTC = self.attention(_through(self.attention_norm, x_BTC), angles, mask)
        x_BTC = x_BTC + _through(self.attention_post_norm, y_BTC)
        passed: Passed = self.feed_forward(_through(self.feed_forward_norm, x_BTC))
        if isinstance(passed, Tensor):
            return x_BTC + _through(self.feed_forward_post_norm, passed)
        return x_BTC + _through(self.feed_forward_post_norm, passed[0]), passed[1]


def _through(norm: nn.Module | None, x_BTC: Tensor) -> Tensor:
    return x_BTC if norm is None else norm(x_BTC)


class Decoder(nn.Module):
    """The interface of a model in training: this one, or one that transformers computes (`models/foreign.py`).

    `forward` takes ids, targets and positions as `Transformer.forward`, `blocks` are the layers, `head` is the last
    one, and `share` and `recompute` are as in Transformer.
    """

    shape: Shape
    share = (0, 1)
    blocks: nn.ModuleList
    head: Any
    recompute: Recompute

    @abstractmethod
    def last_logits(self, ids_BT: Tensor) -> Tensor:
        """The logits (B, V) of the last token."""

    def num_parameters(self) -> int:
        """The number of parameters, with a tied matrix counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @torch.no_grad()
    @for_any_shape()
    def generate(
        self,
        ids_BT: Tensor,
        new_tokens: int,
        *,
        temperature: float = 0.0,
        stop: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Continue `ids_BT` by up to `new_tokens` tokens: greedy at temperature 0, else sampled.

        Without a KV cache each token costs a forward pass over the last `context` tokens. Stops early when the last
        token of every row is `stop`.
        """
        for _ in range(new_tokens):
            logits_BV = self.last_logits(ids_BT[:, -self.shape.context :])
            if temperature == 0.0:
                next_B1 = logits_BV.argmax(dim=-1, keepdim=True)
            else:
                next_B1 = torch.multinomial((logits_BV.float() / temperature).softmax(-1), 1, generator=generator)
            ids_BT = torch.cat((ids_BT, next_B1), dim=1)
            if stop is not None and bool((next_B1 == stop).all()):
                break
        return ids_BT


class Transformer(Decoder):
    """The whole model.

    `recompute` trades compute for memory without changing a bit of a gradient. "full" saves each block's input and
    repeats its forward pass (Chen et al. 2016). "selective" saves the outputs of matrix products and attention, and
    recomputes the cheap rest (in the spirit of Korthikanti et al. 2022).

    With `share` (i, n) only the i-th of n equal parts of each row's tokens goes through the layers. Other processes
    have the rest, and attention sees all.
    """

    def __init__(
        self,
        shape: ModelShape,
        generator: torch.Generator | None = None,
        *,
        mup_base_width: int | None = None,
        mup_base_depth: int | None = None,
    ) -> None:
        super().__init__()
        self.shape: ModelShape = shape
        self.embedding = Embedding(shape.vocab_size, shape.width)
        self.embedding.scale = math.sqrt(shape.width) if shape.family == "gemma3" else 1.0
        self.positions = Embedding(shape.context, shape.width) if shape.family == "gpt2" else None
        self.blocks = nn.ModuleList(Block(shape, layer) for layer in range(shape.depth))
        self.norm = _norm(shape)
        self.head = Head(shape.width, shape.vocab_size, bias=False)
        if shape.tie_embeddings:
            self.head.weight = self.embedding.weight
        self.initialise(generator, mup_base_width=mup_base_width, mup_base_depth=mup_base_depth)

    @property
    def recompute(self) -> Recompute:
        """The activation checkpointing of all blocks."""
        return cast(Block, self.blocks[0]).recompute

    @recompute.setter
    def recompute(self, value: Recompute) -> None:
        for block in self.blocks:
            cast(Block, block).recompute = value

    @torch.no_grad()
    def initialise(
        self,
        generator: torch.Generator | None = None,
        *,
        mup_base_width: int | None = None,
        mup_base_depth: int | None = None,
    ) -> None:
        """Set all weights: N(0, 0.02), divided by sqrt(2 × depth) for layers that write to the residual stream (GPT-2,
        section 2.3) without a norm after them (OLMo 2, section 3.2). Biases are 0, norm scales 1. `generator` defaults
        to torch's global one.

        With muP's base width (Yang et al. 2022, table 8) the blocks' matrices are divided by sqrt(width / base), and
        the output by width / base. That multiplier is put into the scale of the last norm, where every runtime applies
        it, even with a tied head. The scale's learning rate under Adam is divided too, which is equivalent.

        With its base depth (Dey et al. 2025, "CompleteP", α = 1) all that is added to the residual stream is divided by
        depth / base. That multiplier is in the layers that write to the stream, in the same way: their initial weights
        are those of the base depth, divided, and so are their learning rates.
        """
        wider = self.shape.width / mup_base_width if mup_base_width else 1.0
        base = mup_base_depth or self.shape.depth
        residual_std = INIT_STD / math.sqrt(2 * base) * (base / self.shape.depth)
        residual_std = INIT_STD if self.shape.post_norms else residual_std
        centre = 1.0 if self.shape.zero_centred else 0.0
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_((1 / wider if name == "norm.weight" else 1.0) - centre)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                std = residual_std if writes_to_residual(name) else INIT_STD
                if name.startswith("blocks."):
                    std /= math.sqrt(wider)
                parameter.normal_(0.0, std, generator=generator)

    def forward(self, ids_BT: Tensor, targets_BT: Tensor | None = None, positions_BT: Tensor | None = None) -> Tensor:
        """Logits (B, T, V), or with targets (already shifted, IGNORED for none) the mean loss in nats.

        With positions, each counted from the start of its document, documents in one row are isolated: each has the
        logits that it would have by itself (Llama 3, section 3.2). Ids and positions are of whole rows, targets and
        logits of this process's `share` of them. Raises ValueError for more tokens than the context.
        """
        x_BTC, losses_B = self._hidden(ids_BT, positions_BT)
        measured: Tensor = self.head(x_BTC, targets_BT)
        if targets_BT is None or losses_B is None:
            return measured
        targets_B = (targets_BT != IGNORED).sum(1)  # a row weighs as in the mean over targets
        besides = losses_B @ (targets_B / targets_B.sum().clamp(min=1)).to(losses_B.dtype)
        return measured + (besides - besides.detach())

    def _hidden(self, ids_BT: Tensor, positions_BT: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The last hidden states, and the sum of the routers' losses by row."""
        shape, tokens = self.shape, ids_BT.shape[1]
        if tokens > shape.context:
            raise ValueError(f"{tokens} tokens don't fit into the model's context of {shape.context}")
        mine = share_of_tokens(tokens, self.share)
        x_BTC = self.embedding(ids_BT[:, mine])
        if self.positions is not None:
            positions = torch.arange(tokens, device=ids_BT.device) if positions_BT is None else positions_BT
            x_BTC = x_BTC + self.positions(positions[..., mine])
        at = mine if positions_BT is None else positions_BT[:, mine]
        angles: dict[tuple[float | None, RopeScaling | None], tuple[Tensor, Tensor] | None] = {(None, None): None}
        masks: dict[int | None, Mask] = {}
        losses_B: Tensor | None = None
        for block in cast(Iterable[Block], self.blocks):
            theta, scaling, window = block.sight
            if theta is not None and (theta, scaling) not in angles:
                cos, sin = rotary(tokens, shape.head_dim, theta, x_BTC, scaling)
                angles[theta, scaling] = cos[at], sin[at]
            if window not in masks:
                masks[window] = mask_of(x_BTC, positions_BT, window, shape.head_dim, *ids_BT.shape[:2])
            passed = block(x_BTC, angles[theta, scaling], masks[window])
            if isinstance(passed, Tensor):
                x_BTC = passed
            else:
                x_BTC, more_B = passed
                losses_B = more_B if losses_B is None else losses_B + more_B
        return self.norm(x_BTC), losses_B

    def last_logits(self, ids_BT: Tensor) -> Tensor:
        return self.head(self._hidden(ids_BT)[0][:, -1])
