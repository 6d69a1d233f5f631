"""Cuts the smaller model: rows and columns of the matrices, picked by importance, in their old order.

Heads keep their size if channels go, and key/value heads go together with the query heads that share them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models.pretrained import head_size
from storage.errors import ConfigError
from tasks.posttrain.prune.config import PruneConfig
from tasks.posttrain.prune.importance import Importance

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")  # they share one layout
LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
# The axes of each weight or bias in a layer: rows, then columns
AXES: Mapping[str, tuple[str, ...]] = {
    "self_attn.q_proj": ("heads", "channels"),
    "self_attn.k_proj": ("kv_heads", "channels"),
    "self_attn.v_proj": ("kv_heads", "channels"),
    "self_attn.o_proj": ("channels", "heads"),
    "self_attn.q_norm": ("",),
    "self_attn.k_norm": ("",),
    "mlp.gate_proj": ("neurons", "channels"),
    "mlp.up_proj": ("neurons", "channels"),
    "mlp.down_proj": ("channels", "neurons"),
    "input_layernorm": ("channels",),
    "post_attention_layernorm": ("channels",),
}
OUTSIDE: Mapping[str, tuple[str, ...]] = {
    "model.embed_tokens": ("", "channels"),
    "model.norm": ("channels",),
    "lm_head": ("", "channels"),
}


@dataclass(frozen=True)
class Kept:
    """The layers and channels that are kept, and by the number of each layer the indices that are kept of its axes."""

    layers: list[int]
    channels: Tensor
    in_layers: list[dict[str, Tensor]]


def check_sizes(config: PruneConfig, model: Any) -> None:
    """Raises ConfigError for a model of another layout, and for settings that exceed what its config has."""
    if model.model_type not in ARCHITECTURES:
        raise ConfigError(
            f"prune can't cut a model of the architecture {model.model_type}.",
            f"Choose one of {', '.join(ARCHITECTURES)}, or set `prune: null`.",
        )
    sizes = {
        "layers": model.num_hidden_layers,
        "feed_forward": model.intermediate_size,
        "kv_heads": model.num_key_value_heads,
        "width": model.hidden_size,
    }
    if more := config.beyond(sizes):
        raise ConfigError(f"{more}.", "Lower it, or leave it out.")


def choose(config: PruneConfig, model: Any, measured: Importance) -> Kept:
    """The parts to keep of a model with this config."""
    size = head_size(model)
    shared = model.num_attention_heads // model.num_key_value_heads

    def of_layer(number: int) -> dict[str, Tensor]:
        kv_heads = _largest(measured.kv_heads[number], config.kv_heads)
        heads = (kv_heads[:, None] * shared + torch.arange(shared)).flatten()
        return {
            "neurons": _largest(measured.neurons[number], config.feed_forward),
            "kv_heads": _spread(kv_heads, size),
            "heads": _spread(heads, size),
        }

    return Kept(
        _largest(measured.layers, config.layers).tolist(),
        _largest(measured.channels, config.width),
        [of_layer(number) for number in range(model.num_hidden_layers)],
    )


def cut(model: PreTrainedModel, config: PruneConfig, kept: Kept) -> PreTrainedModel:
    """The model with only the kept parts. Raises ConfigError for a weight with unknown axes."""
    from transformers import AutoModelForCausalLM

    theirs: Any = model.config
    ratio = theirs.num_attention_heads // theirs.num_key_value_heads
    smaller = copy.deepcopy(theirs)
    smaller.head_dim = head_size(theirs)
    smaller.num_hidden_layers = len(kept.layers)
    smaller.hidden_size = config.width or theirs.hidden_size
    smaller.intermediate_size = config.feed_forward or theirs.intermediate_size
    smaller.num_key_value_heads = config.kv_heads or theirs.num_key_value_heads
    smaller.num_attention_heads = ratio * smaller.num_key_value_heads
    if getattr(theirs, "layer_types", None):
        smaller.layer_types = [theirs.layer_types[number] for number in kept.layers]
    if getattr(theirs, "max_window_layers", None):
        smaller.max_window_layers = sum(number < theirs.max_window_layers for number in kept.layers)
    place = {number: position for position, number in enumerate(kept.layers)}
    state = {}
    for name, value in model.state_dict().items():
        match = LAYER.fullmatch(name)
        if match is None:
            state[name] = _pick(value, _axes(OUTSIDE, name), {"channels": kept.channels})
        elif (number := int(match[1])) in place:
            axes = _axes(AXES, match[2])
            picked = _pick(value, axes, {"channels": kept.channels, **kept.in_layers[number]})
            state[f"model.layers.{place[number]}.{match[2]}"] = picked
    result: PreTrainedModel = AutoModelForCausalLM.from_config(smaller)
    result.load_state_dict(state)
    result.generation_config = copy.deepcopy(model.generation_config)
    return result.eval()


def _axes(known: Mapping[str, tuple[str, ...]], name: str) -> tuple[str, ...]:
    module = name.rpartition(".")[0]
    if module not in known:
        raise ConfigError(f"prune does not know the axes of the weight {name}.", "Set `prune: null`.")
    return known[module]


def _pick(value: Tensor, axes: tuple[str, ...], indices: Mapping[str, Tensor]) -> Tensor:
    for axis, name in zip(range(value.ndim), axes, strict=False):  # a bias has rows only
        if name:
            value = value.index_select(axis, indices[name])
    return value.clone()


def _largest(values: Tensor, number: int | None) -> Tensor:
    """The indices of the `number` largest values, in ascending order. Of equal values, the first are taken."""
    order = torch.argsort(values, descending=True, stable=True)
    return order[:number].sort().values


def _spread(heads: Tensor, size: int) -> Tensor:
    """The indices of the channels of these heads."""
    return (heads[:, None] * size + torch.arange(size)).flatten()
