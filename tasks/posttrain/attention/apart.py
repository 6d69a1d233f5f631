"""Attention of packed rows, conversation by conversation.

transformers' own attention gets packed rows as a mask of all tokens by all tokens: a gigabyte for a row of 32k, and
every product of two conversations is computed only to be hidden. Here each conversation is a call of its own, or one
call of variable length for all of them where a GPU has that (models/kernels/attention.py). Rows that are not packed
take transformers' path. Models that don't hand their positions to attention keep the mask.

Shapes: B rows, T tokens, H heads, K heads of keys, D head size.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from models.kernels.attention import Mask, attend, mask_of, takes_documents, window_mask
from models.kernels.exchange import attend_to_all

PACKED = "packed_conversations"  # the name under which transformers knows this attention
LAYERS = {"full_attention", "sliding_attention"}  # other kinds have masks of their own
# Arguments that other kernels take and this one doesn't: a bound on scores (Gemma 2), and sinks (gpt-oss)
CHANGES_SCORES = ("softcap", "s_aux", "position_bias")


class Shared(NamedTuple):
    """Rows that the ranks of a group share: the positions of the whole rows, and the tokens of this rank."""

    group: ProcessGroup
    ranks: int
    positions_BT: Tensor
    span: slice


# Of the last forward pass, and not an argument of it: recomputation in the backward pass needs it again
shared: Shared | None = None


def can_attend_apart(config: Any) -> bool:
    """Whether all layers of a model attend to all tokens before, or to those of a sliding window."""
    return config._attn_implementation == "sdpa" and set(getattr(config, "layer_types", None) or ()) <= LAYERS


def attend_apart(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    position_ids: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' interface: query (B, H, T, D), key and value (B, K, T, D), result (B, T, H, D).

    Raises TypeError for a model without positions, or with scores that it doesn't know.
    """
    if attention_mask is not None:
        settings = {"dropout": dropout, "scaling": scaling, **others}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    if position_ids is None or any(others.get(name) is not None for name in CHANGES_SCORES):
        raise TypeError(f"{type(module).__name__} has no positions, or changes scores")
    positions_BT = (shared.positions_BT if shared else position_ids).expand(len(query), -1)
    attend_rows = functools.partial(_attend_rows, positions_BT, dropout, scaling, sliding_window)
    parts = [part.transpose(1, 2) for part in (query, key, value)]
    if shared is None:
        return attend_rows(*parts), None
    return attend_to_all(attend_rows, *parts, group=shared.group, ranks=shared.ranks), None


def _attend_rows(
    positions_BT: Tensor,
    dropout: float,
    scaling: float | None,
    window: int | None,
    q_BTHD: Tensor,
    k_BTKD: Tensor,
    v_BTKD: Tensor,
) -> Tensor:
    """Whole rows, of all heads or of some."""
    size = q_BTHD.shape[-1]
    if dropout == 0 and takes_documents(q_BTHD, size):
        if scaling is not None:
            q_BTHD = q_BTHD * (scaling * size**0.5)  # the kernels divide by the root of the head size
        return attend(q_BTHD, k_BTKD, v_BTKD, _mask(q_BTHD, positions_BT, window, size))
    q_BHTD, k_BKTD, v_BKTD = (part.transpose(1, 2) for part in (q_BTHD, k_BTKD, v_BTKD))
    rows = [
        _attend_row(q_HTD, k_KTD, v_KTD, positions_T, dropout, scaling, window)
        for q_HTD, k_KTD, v_KTD, positions_T in zip(q_BHTD, k_BKTD, v_BKTD, positions_BT, strict=True)
    ]
    return torch.stack(rows).transpose(1, 2)


_masks: dict[int | None, tuple[Tensor, Mask]] = {}  # of the last batch, by window: all layers share them


def _mask(x: Tensor, positions_BT: Tensor, window: int | None, size: int) -> Mask:
    of, mask = _masks.get(window, (None, None))
    if of is None or of.data_ptr() != positions_BT.data_ptr() or of.shape != positions_BT.shape:
        mask = mask_of(x, positions_BT, window, size, *positions_BT.shape)
        _masks[window] = positions_BT, mask
    return mask


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend_row(
    q_HTD: Tensor,
    k_KTD: Tensor,
    v_KTD: Tensor,
    positions_T: Tensor,
    dropout: float,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """One row (H, T, D): a call for each conversation, which begins at position 0."""
    begins = [0, *(1 + (positions_T[1:] == 0).nonzero().flatten()).tolist()]
    lengths = [end - begin for begin, end in zip(begins, [*begins[1:], len(positions_T)], strict=True)]
    shared = q_HTD.shape[0] != k_KTD.shape[0]
    parts = []
    for q_HSD, k_KSD, v_KSD in zip(*(part.split(lengths, dim=1) for part in (q_HTD, k_KTD, v_KTD)), strict=True):
        length = q_HSD.shape[1]
        near = window_mask(length, window, q_HSD.device) if window is not None and window < length else None
        y_BHSD = F.scaled_dot_product_attention(
            q_HSD[None],
            k_KSD[None],
            v_KSD[None],
            attn_mask=near,
            dropout_p=dropout,
            is_causal=near is None,
            scale=scaling,
            enable_gqa=shared,
        )
        parts.append(y_BHSD[0])
    return torch.cat(parts, dim=1)


def _mask_unless_packed(*, attention_mask: Tensor | None, q_length: int, kv_length: int, **others: Any) -> Any:
    """No mask for rows without padding and cache: positions say where conversations begin."""
    if attention_mask is None and q_length == kv_length:
        return None
    return sdpa_mask(attention_mask=attention_mask, q_length=q_length, kv_length=kv_length, **others)


AttentionInterface.register(PACKED, attend_apart)
AttentionMaskInterface.register(PACKED, _mask_unless_packed)
