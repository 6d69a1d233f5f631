"""Which weights are trained: all, all but frozen parts, or an adapter with the parts that are trained whole beside it.

Only they have gradients, optimizer states and a place in checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from models.foreign import is_added
from models.presets import Shape
from models.transformer import Decoder
from storage.errors import ConfigError
from tasks.pretrain.config import FreezeConfig, PretrainConfig
from tasks.pretrain.engines.initialise import new_decoder
from tasks.training.adapters.config import Part
from tasks.training.adapters.whole import modules_to_train


def mark_trained(model: Decoder, config: PretrainConfig) -> None:
    """Set which of the parameters require gradients. Raises ConfigError for parts and layers that the model lacks, and
    where nothing would be trained."""
    if config.adapter is not None:
        whole = _ids(_parameters_of(model, config.adapter.whole, "pretrain.adapter.whole"))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_added(name) or id(parameter) in whole)
    elif config.freeze is not None:
        frozen = _frozen(model, config.freeze)
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) not in frozen)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError("pretrain.freeze leaves nothing to train.", "Freeze fewer parts.")


def trained_sizes(shape: Shape, config: PretrainConfig, base: Path | None) -> dict[str, tuple[int, ...]]:
    """Names and sizes of the trained parameters of the whole model, tied ones once. Raises as `mark_trained` does."""
    with torch.device("meta"):
        model = new_decoder(shape, config, base)
    mark_trained(model, config)
    return {name: tuple(value.shape) for name, value in model.named_parameters() if value.requires_grad}


def _frozen(model: Decoder, freeze: FreezeConfig) -> set[int]:
    frozen = _ids(_parameters_of(model, freeze.parts, "pretrain.freeze.parts"))
    for name in ("layers", "all_but_layers"):
        if (chosen := getattr(freeze, name)) is None:
            continue
        first, last = chosen
        if last >= len(model.blocks):
            raise ConfigError(
                f"pretrain.freeze.{name} ends with layer {last:,}, but the model has the layers 0 to "
                f"{len(model.blocks) - 1:,}.",
                "Name some of these.",
            )
        within = _ids(parameter for block in model.blocks[first : last + 1] for parameter in block.parameters())
        frozen |= within if name == "layers" else _ids(model.parameters()) - within
    return frozen


def _parameters_of(model: Decoder, parts: tuple[Part, ...], section: str) -> list[Tensor]:
    names = modules_to_train(section, parts, model, model.head)
    return [parameter for name in names for parameter in model.get_submodule(name).parameters(recurse=False)]


def _ids(parameters: Iterable[Tensor]) -> set[int]:
    return {id(parameter) for parameter in parameters}
