"""Measures the importance of a model's layers, neurons, heads and channels, by forward passes only.

A layer's importance is its block influence, how far it turns the residual stream: the mean of 1 − cos(input, output)
over tokens (Men et al. 2024, ShortGPT). A neuron's is the mean absolute value of its activation, a head's the mean
norm of its input to the output matrix, and a channel's the mean absolute value of the norms' output (Muralidharan et
al. 2024, Minitron).

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
    """Larger is more important. `neurons` (F,) and `kv_heads` have a tensor for each layer, `channels` is (C,)."""

    layers: Tensor
    neurons: list[Tensor]
    kv_heads: list[Tensor]
    channels: Tensor


@torch.no_grad()
def importance(model: PreTrainedModel, rows: Iterable[Sequence[int]]) -> Importance:
    """The importance over all tokens of `rows`, which are lists of ids, in one forward pass each."""
    decoder: Any = model.get_decoder()
    config: Any = model.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    sums: dict[str, Tensor] = {}

    def add(name: str, value: Tensor) -> None:
        value = value.double()
        sums[name] = sums[name] + value if name in sums else value

    def record_turn(name: str) -> Callable[[nn.Module, Any, Any, Any], None]:
        def hook(_: nn.Module, arguments: Any, keywords: Any, output: Any) -> None:
            before = arguments[0] if arguments else keywords["hidden_states"]
            after = output[0] if isinstance(output, tuple) else output
            add(name, (1 - F.cosine_similarity(before.double(), after.double(), dim=-1)).sum())

        return hook

    def record_activation(name: str) -> Callable[[nn.Module, Any], None]:
        return lambda _, inputs: add(name, inputs[0].abs().sum((0, 1)))

    def record_norms(name: str) -> Callable[[nn.Module, Any], None]:
        return lambda _, inputs: add(name, inputs[0].unflatten(-1, (heads, -1)).norm(dim=-1).sum((0, 1)))

    def record_channels(_: nn.Module, __: Any, output: Tensor) -> None:
        add("channels", output.abs().sum((0, 1)))

    hooks = []
    for number, layer in enumerate(decoder.layers):
        hooks += [
            layer.register_forward_hook(record_turn(f"layer {number}"), with_kwargs=True),
            layer.mlp.down_proj.register_forward_pre_hook(record_activation(f"neurons {number}")),
            layer.self_attn.o_proj.register_forward_pre_hook(record_norms(f"heads {number}")),
            layer.input_layernorm.register_forward_hook(record_channels),
            layer.post_attention_layernorm.register_forward_hook(record_channels),
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
