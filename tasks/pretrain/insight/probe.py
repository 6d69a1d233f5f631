"""Attention entropy and logits of one row, in an extra forward pass.

Fused attention never materialises its weights, so they are recomputed for the first `TOKENS` tokens of one sequence,
after the step, without gradients or random numbers.

Shape suffixes as in models/transformer.py: B batch, T tokens, H heads, D head size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from models.transformer import share_of_tokens

TOKENS = 1024  # the weights of H heads take 4 × H × TOKENS² bytes


@torch.no_grad()
def attention_entropy(q_BHTD: Tensor, k_BHTD: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
    """(H,): the entropy of each head's weights in nats, the mean over queries. ln(n) where n keys weigh the same.

    `mask` is as torch's scaled_dot_product_attention takes it: True for what may be seen, or a number to add.
    """
    queries, keys = q_BHTD.shape[2], k_BHTD.shape[2]
    k_BHTD = k_BHTD.repeat_interleave(q_BHTD.shape[1] // k_BHTD.shape[1], dim=1)
    scores = q_BHTD.float() @ k_BHTD.float().transpose(2, 3) / math.sqrt(q_BHTD.shape[3])
    if causal:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.float()
    weights = scores.softmax(-1)
    return torch.special.entr(weights).sum(-1).mean((0, 2))


class _Attentions(TorchFunctionMode):
    """Records the entropies of every call of scaled_dot_product_attention, whichever module makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.entropies: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
            causal = kwargs.get("is_causal", args[5] if len(args) > 5 else False)
            self.entropies.append(attention_entropy(args[0], args[1], mask, causal=bool(causal)))
        return func(*args, **kwargs)


@torch.no_grad()
def probe(
    model: nn.Module, ids_BT: Tensor, positions_BT: Tensor | None, targets_BT: Tensor | None = None
) -> tuple[list[Tensor], dict[str, float]]:
    """The entropies (H,) of each attention in order, and the logits' largest magnitude and mean entropy in nats.

    Only the first row is used. If ranks hold parts of a model, every one of them must call it. With targets the model
    computes its loss and logits are left out, as a sharded output layer never has them all.
    """
    share = getattr(model, "share", (0, 1))  # of context parallelism
    tokens = min(TOKENS, ids_BT.shape[1]) // share[1] * share[1]  # divisible among the ranks
    mine = share_of_tokens(tokens, share)
    row, positions = ids_BT[:1, :tokens], None if positions_BT is None else positions_BT[:1, :tokens]
    with _Attentions() as seen:
        logits_BTV: Tensor = model(row, None if targets_BT is None else targets_BT[:1, mine], positions)
    if targets_BT is not None:
        return seen.entropies, {}
    logp_BTV = F.log_softmax(logits_BTV.float(), dim=-1)
    entropy = -(logp_BTV.exp() * logp_BTV).sum(-1).mean()
    return seen.entropies, {"logit_max": float(logits_BTV.abs().max()), "logit_entropy": float(entropy)}
