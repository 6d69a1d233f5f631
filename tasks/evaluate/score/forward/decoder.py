"""LLaMA and its kin on a CPU, with fewer passes over memory than in transformers.

Weights are packed, and activations, products of gates and residual sums are computed with the matrix product before
them. Attention takes queries in pieces, each with the keys that some of them see. The last layer and the head compute
only the tokens that are asked for. The results equal those of transformers to rounding, which is proved for each model
on a small trie before it is used.

Shapes: T tokens, A of them asked for, S keys, H heads, K heads of keys and values, D head size, C width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from models.kernels.packed_linear import can_pack, pack
from models.kernels.virtual_tokens import virtual_tokens
from tasks.evaluate.score.forward.packed import rows_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KNOWN = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROTATIONS = ("default", "linear", "llama3", "yarn")  # those that don't depend on the length of a text
PIECE = 64  # queries of a piece
NEAR = 1e-3  # nats of rounding allowed
PROOF = ((1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 7, 6, 5, 3), (1, 2, 5), (6, 5, 4, 3, 2, 1))


class Attention(Protocol):
    """What the queries of a layer see."""

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """The values (T, H × D) that queries attend to, of the last layer only those asked for."""
        ...


class Decoder:
    """The forward pass of a model, whose linear layers it packs."""

    def __init__(self, model: PreTrainedModel) -> None:
        pack(model)
        self.whole: Any = model
        self.layers: Any = self.whole.model.layers
        config = model.config
        self.vocab_size = int(config.vocab_size)
        self.head_size = int(self.layers[0].self_attn.head_dim)
        self.kv_heads = int(config.num_key_value_heads)
        self.sharing = int(config.num_attention_heads) // self.kv_heads

    def __call__(self, ids: Sequence[int], places: Sequence[int], attention: Attention, asked: Sequence[int]) -> Tensor:
        """The states (A, C) of the asked tokens, from which `logits` follow. `places` are the positions of all."""
        asked_A = torch.tensor(asked)
        x_TC = self.whole.model.embed_tokens(torch.tensor(ids))
        angles = self.whole.model.rotary_emb(x_TC[None], torch.tensor([places]))
        half = self.head_size // 2
        cos_TD, sin_TD = (part[0, :, None, :half].contiguous() for part in angles)
        for number, layer in enumerate(self.layers):
            heads, y_TC = layer.self_attn, _norm(layer.input_layernorm, x_TC)
            k_TKD = _turned(self._heads(heads, "k", y_TC), cos_TD, sin_TD)
            v_TKD = heads.v_proj(y_TC).unflatten(-1, (-1, self.head_size))
            if number == len(self.layers) - 1:
                x_TC, y_TC, cos_TD, sin_TD = (part[asked_A] for part in (x_TC, y_TC, cos_TD, sin_TD))
            q_THD = _turned(self._heads(heads, "q", y_TC), cos_TD, sin_TD)
            x_TC = heads.o_proj.joined(attention(number, q_THD, k_TKD, v_TKD), x_TC, "add")
            y_TC = _norm(layer.post_attention_layernorm, x_TC)
            gated = layer.mlp.up_proj.joined(y_TC, layer.mlp.gate_proj(y_TC, "swish"), "mul")
            x_TC = layer.mlp.down_proj.joined(gated, x_TC, "add")
        return _norm(self.whole.model.norm, x_TC)

    def logits(self, states_AC: Tensor) -> Tensor:
        """(A, V)"""
        logits_AV: Tensor = self.whole.lm_head(states_AC)
        return logits_AV

    def _heads(self, layer: Any, kind: str, y_TC: Tensor) -> Tensor:
        """Queries or keys, normalised if the model does so (Qwen3)."""
        x_THD: Tensor = getattr(layer, f"{kind}_proj")(y_TC).unflatten(-1, (-1, self.head_size))
        norm = getattr(layer, f"{kind}_norm", None)
        return x_THD if norm is None else _norm(norm, x_THD)


class RowAttention:
    """Attention of a row: each token sees what its mask (T, T) says, and all `before` keys of earlier rows.

    `remember` gets a layer's new keys and values (T, K, D), and returns those before and of the row, (K, S, D).
    """

    def __init__(
        self,
        decoder: Decoder,
        mask_TT: npt.NDArray[np.bool_],
        asked: Sequence[int],
        before: int = 0,
        remember: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        self.last = len(decoder.layers) - 1
        self.remember = remember
        mask_TS = np.pad(mask_TT, ((0, 0), (before, 0)), constant_values=True)
        self.pieces = _pieces(mask_TS, decoder.sharing)
        self.asked = _pieces(mask_TS[np.array(asked)], decoder.sharing)

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """As in the protocol."""
        if self.remember is None:
            k_KSD, v_KSD = k_TKD.transpose(0, 1), v_TKD.transpose(0, 1)
        else:
            k_KSD, v_KSD = self.remember(layer, k_TKD, v_TKD)
        y_THD = torch.empty_like(q_THD)
        for queries, keys, bias in self.asked if layer == self.last else self.pieces:
            y_THD[queries] = _attended(q_THD[queries], k_KSD[:, keys], v_KSD[:, keys], bias)
        return y_THD.flatten(1)


def _pieces(mask_TS: npt.NDArray[np.bool_], sharing: int) -> list[tuple[slice, Tensor | slice, Tensor]]:
    """The queries of each piece, the keys that one of them sees, and what is added to the scores of the heads that
    share a key."""
    pieces = []
    for start in range(0, len(mask_TS), PIECE):
        part = mask_TS[start : start + PIECE]
        seen = np.flatnonzero(part.any(0))
        keys: Tensor | slice = slice(int(seen[0]), int(seen[-1]) + 1)
        if len(seen) != seen[-1] + 1 - seen[0]:
            keys = torch.from_numpy(seen)
        hidden = torch.from_numpy(~part[:, seen])
        bias = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf).repeat(sharing, 1)
        pieces.append((slice(start, start + len(part)), keys, bias))
    return pieces


def _attended(q_THD: Tensor, k_KSD: Tensor, v_KSD: Tensor, bias: Tensor) -> Tensor:
    """The values (T, H, D) for queries. The heads that share keys stand below each other, so that no key is copied."""
    tokens, heads, size = q_THD.shape
    shared = heads // len(k_KSD)
    q_KND = q_THD.view(tokens, len(k_KSD), shared, size).permute(1, 2, 0, 3).reshape(len(k_KSD), -1, size)
    y_KND = F.scaled_dot_product_attention(q_KND[None], k_KSD[None], v_KSD[None], attn_mask=bias[None, None])[0]
    return y_KND.view(len(k_KSD), shared, tokens, size).permute(2, 0, 1, 3).reshape(tokens, heads, size)


def _norm(norm: Any, x: Tensor) -> Tensor:
    scale = x.pow(2).mean(-1, keepdim=True).add_(norm.variance_epsilon).rsqrt_()
    return (x * scale).mul_(norm.weight)


def _turned(x_THD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Rotary positions of the two halves of each head."""
    turned = torch.empty_like(x_THD)
    (left, right), (first, second) = x_THD.chunk(2, -1), turned.chunk(2, -1)
    torch.mul(left, cos_TD, out=first).addcmul_(right, sin_TD, value=-1)
    torch.mul(right, cos_TD, out=second).addcmul_(left, sin_TD)
    return turned


def decoder_of(model: PreTrainedModel) -> Decoder | None:
    """The decoder of a model whose attention is plain, or None for one that it doesn't compute. The model's own linear
    layers are packed."""
    config = model.config
    rotation = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    known = type(model).__name__ in KNOWN and config.hidden_act == "silu" and rotation in ROTATIONS
    if not known or virtual_tokens(config) or not all(map(can_pack, model.parameters())):
        return None
    decoder = Decoder(model)
    return decoder if _proved(decoder) else None


@torch.no_grad()
def _proved(decoder: Decoder) -> bool:
    """Whether the next-token distributions of a small trie equal those of transformers."""
    texts = [[id % decoder.vocab_size for id in text] for text in PROOF]
    (row,) = rows_of(texts, sum(map(len, texts)))
    ends = [path[-1] for _, path in sorted(row.paths.items())]
    ours = decoder.logits(decoder(row.ids, row.depths, RowAttention(decoder, row.mask(), ends), ends)).log_softmax(-1)
    theirs = [decoder.whole(torch.tensor([text])).logits[0, -1].log_softmax(-1) for text in texts]
    return bool((ours - torch.stack(theirs)).abs().max() <= NEAR)
