"""Which layer feeds which in a block, so that a factor on each column of a layer can be divided out of its feeder.

A layer computes the same if its column j is multiplied by s and its input j is divided by s. The division is folded
into a norm's scale, or into a row of the layer whose output gets here without anything non-linear in between: values
through attention into the output layer, and `up` through its product with the gate into `down`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from storage.errors import ConfigError


@dataclass(frozen=True)
class Fold:
    """Layers of a block with the same feeder: a norm or a linear layer."""

    feeder: str
    fed: tuple[str, ...]


_ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_INNER = (Fold("self_attn.v_proj", ("self_attn.o_proj",)), Fold("mlp.up_proj", ("mlp.down_proj",)))
_GATED = ("mlp.gate_proj", "mlp.up_proj")
_LLAMA = (Fold("input_layernorm", _ATTENTION), Fold("post_attention_layernorm", _GATED), *_INNER)
_GEMMA2 = (Fold("input_layernorm", _ATTENTION), Fold("pre_feedforward_layernorm", _GATED), *_INNER)

FOLDS = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma": _LLAMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA2,
    "olmo3": _INNER,  # its norms come after
}
_OFFSETS = {"gemma": 1.0, "gemma2": 1.0, "gemma3_text": 1.0}  # a norm multiplies by this plus its weight


def folds_of(kind: str) -> tuple[Fold, ...]:
    """The folds in each block of an architecture. Raises ConfigError for an unknown one."""
    if kind not in FOLDS:
        raise ConfigError(
            f"AWQ folds scales into the layer that feeds another, and these layers of a {kind} model are unknown.",
            f"Use gptq, which doesn't need them, or a model of {', '.join(FOLDS)}.",
        )
    return FOLDS[kind]


def fits(feeder: nn.Module, fed: nn.Linear) -> bool:
    """Whether each column of the fed layer has its own output of the feeder, which isn't so if heads share values."""
    return not isinstance(feeder, nn.Linear) or feeder.out_features == fed.in_features


@torch.no_grad()
def divide(feeder: nn.Module, factors_C: Tensor, kind: str) -> None:
    """Divide the output of a norm or a linear layer of an architecture."""
    weight, bias = feeder.get_parameter("weight"), getattr(feeder, "bias", None)
    if isinstance(feeder, nn.Linear):
        weight.div_(factors_C.unsqueeze(1))
    else:
        offset = _OFFSETS.get(kind, 0.0)
        weight.copy_((weight + offset) / factors_C - offset)
    if bias is not None:
        bias /= factors_C


def norm_factors(before_C: Tensor, after_C: Tensor, kind: str) -> Tensor:
    """The factors that a norm was divided by, from its weights before and after. 1 where its output is always zero."""
    offset = _OFFSETS.get(kind, 0.0)
    return torch.where(after_C + offset == 0, 1.0, (before_C + offset) / (after_C + offset))
