"""Low-rank changes of matrices (LoRA, Hu et al. 2021). Those of several adapters, trained one after the other, are
joined into one: its change is their sum, and its factors are theirs side by side. A tensor that several train whole is
that of the last.

Shapes: R rank, I inputs and O outputs of a layer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from models.pretrained import load_pretrained
from storage.errors import ConfigError, ParityError
from storage.shards.arrays import Float32

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # as PEFT looks for them
ALPHA = 8  # PEFT's default
_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"  # of PEFT's names


@dataclass(frozen=True)
class LowRank:
    """The change of a layer's matrix, outputs × inputs, is scale · B·A. Tensors in `whole` replace the base's."""

    scale: float
    layers: Mapping[str, tuple[Float32, Float32]]  # A (R, I) and B (O, R), by the name of the layer
    transposed: bool = False  # the base stores inputs × outputs, as GPT-2 does
    whole: Mapping[str, Float32] = field(default_factory=dict)  # by the name of the tensor

    @property
    def rank(self) -> int:
        """R, the same for all layers."""
        return max(a.shape[0] for a, _ in self.layers.values())

    def change(self, layer: str) -> Float32:
        """(O, I) the change added to the matrix of a layer."""
        a, b = self.layers[layer]
        delta: Float32 = np.float32(self.scale) * (b @ a)
        return delta


def settings_of(folder: Path) -> dict[str, Any]:
    """The settings of an adapter. Raises ConfigError for one whose change isn't a product of two factors."""
    settings: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    if settings["peft_type"] != "LORA" or settings.get("use_dora"):
        kind = "DoRA" if settings.get("use_dora") else settings["peft_type"]
        raise ConfigError(
            f"The adapter is {kind}, not plain LoRA.", "Leave adapter and gguf-adapter out of export.formats."
        )
    return settings


def read_factors(folder: Path) -> LowRank:
    """The factors in a folder as PEFT writes it. Raises ConfigError for anything but plain LoRA."""
    from safetensors.numpy import load_file

    settings = settings_of(folder)
    rank, tensors = settings["r"], load_file(folder / WEIGHTS)
    names = sorted(name.removeprefix(_PREFIX).removesuffix(_A) for name in tensors if name.endswith(_A))
    layers = {name: (tensors[f"{_PREFIX}{name}{_A}"], tensors[f"{_PREFIX}{name}{_B}"]) for name in names}
    scale = settings.get("lora_alpha", ALPHA) / (math.sqrt(rank) if settings.get("use_rslora") else rank)
    whole = {name.removeprefix(_PREFIX): value for name, value in tensors.items() if ".lora_" not in name}
    return LowRank(scale, layers, bool(settings.get("fan_in_fan_out")), whole)


def joined(adapters: Sequence[LowRank]) -> LowRank:
    """One adapter whose change is the sum of theirs, with the summed rank and scale 1. An adapter that doesn't change a
    layer gets factors of zeros there, as PEFT needs one rank for all layers."""
    if len(adapters) == 1:
        return adapters[0]
    layers = {}
    for name in sorted({name for one in adapters for name in one.layers}):
        inputs, outputs = next(
            (a.shape[1], b.shape[0]) for one in adapters if name in one.layers for a, b in [one.layers[name]]
        )
        parts = [
            one.layers.get(name, (np.zeros((one.rank, inputs), np.float32), np.zeros((outputs, one.rank), np.float32)))
            for one in adapters
        ]
        b = [np.float32(one.scale) * part for one, (_, part) in zip(adapters, parts, strict=True)]
        layers[name] = np.concatenate([part for part, _ in parts]), np.concatenate(b, axis=1)
    whole = {name: value for one in adapters for name, value in one.whole.items()}
    return LowRank(1.0, layers, adapters[0].transposed, whole)


def as_tensors(factors: LowRank) -> dict[str, Float32]:
    """Factors and whole tensors under PEFT's names."""
    low_rank = {
        f"{_PREFIX}{name}{end}": np.ascontiguousarray(value)
        for name, pair in factors.layers.items()
        for end, value in zip((_A, _B), pair, strict=True)
    }
    return {**low_rank, **{f"{_PREFIX}{name}": value for name, value in factors.whole.items()}}


def base_matrices(base: Path, factors: LowRank) -> Iterator[tuple[str, str, Float32]]:
    """(name, layer or empty, values) of each tensor of the base, under the names that transformers loads them by, whole
    ones replaced. Raises ParityError for one that the adapter changes and the base lacks."""
    state = load_pretrained(base).state_dict()
    if lost := sorted({*(f"{name}.weight" for name in factors.layers), *factors.whole} - {*state}):
        raise ParityError(f"The adapter changes {lost[0]}, which the base lacks.", "Report it.")
    for name, value in state.items():
        layer = name.removesuffix(".weight")
        yield name, layer if layer in factors.layers else "", factors.whole.get(name, value.numpy())
