"""What a model uses: the importance of layers, neurons, heads and channels, from forward passes alone.

A layer's is its block influence, how far it turns the residual stream: the mean of 1 − cos(input, output) over tokens
(Men et al. 2024, ShortGPT). A neuron's is the mean of its activation's absolute value, a head's the mean length of what
it gives to the output matrix, a channel's the mean absolute value of what the norms make of it (Muralidharan et al.
2024, Minitron).

Shapes: B rows, T tokens, C channels, F neurons, H heads, D channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Importance:
    """Larger is more important. `neurons` (F,) and `kv_heads` have a tensor a layer, `channels` is (C,)."""

    layers: Tensor
    neurons: list[Tensor]
    kv_heads: list[Tensor]
    channels: Tensor


@torch.no_grad()
def importance(model: PreTrainedModel, rows: Iterable[Sequence[int]]) -> Importance:
    """Measured over all tokens of `rows`, which are ids, one row at a time."""
    decoder: Any = model.get_decoder()
    config: Any = model.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    sums: dict[str, Tensor] = {}

    def add(name: str, value: Tensor) -> None:
        value = value.double()
        sums[name] = sums[name] + value if name in sums else value

    def turned(name: str) -> Callable[[nn.Module, Any, Any, Any], None]:
        def hook(_: nn.Module, given: Any, named: Any, made: Any) -> None:
            before = given[0] if given else named["hidden_states"]
            after = made[0] if isinstance(made, tuple) else made
            add(name, (1 - F.cosine_similarity(before.double(), after.double(), dim=-1)).sum())

        return hook

    def active(name: str) -> Callable[[nn.Module, Any], None]:
        return lambda _, given: add(name, given[0].abs().sum((0, 1)))

    def lengths(name: str) -> Callable[[nn.Module, Any], None]:
        return lambda _, given: add(name, given[0].unflatten(-1, (heads, -1)).norm(dim=-1).sum((0, 1)))

    def normed(_: nn.Module, __: Any, made: Tensor) -> None:
        add("channels", made.abs().sum((0, 1)))

    hooks = []
    for number, layer in enumerate(decoder.layers):
        hooks += [
            layer.register_forward_hook(turned(f"layer {number}"), with_kwargs=True),
            layer.mlp.down_proj.register_forward_pre_hook(active(f"neurons {number}")),
            layer.self_attn.o_proj.register_forward_pre_hook(lengths(f"heads {number}")),
            layer.input_layernorm.register_forward_hook(normed),
            layer.post_attention_layernorm.register_forward_hook(normed),
        ]
    tokens = 0
    try:
        for ids in rows:
            decoder(input_ids=torch.tensor([list(ids)], device=model.device), use_cache=False)
            tokens += len(ids)
    finally:
        for hook in hooks:
            hook.remove()
    numbers = range(len(decoder.layers))
    return Importance(
        torch.stack([sums[f"layer {number}"] for number in numbers]) / tokens,
        [sums[f"neurons {number}"] / tokens for number in numbers],
        [sums[f"heads {number}"].unflatten(0, (kv_heads, -1)).sum(-1) / tokens for number in numbers],
        sums["channels"] / tokens / (2 * len(decoder.layers)),
    )
