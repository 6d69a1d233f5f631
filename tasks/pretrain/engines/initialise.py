"""Initial weights, a parameter at a time: no rank holds the whole model at the start, whatever the engine.

Every rank draws every parameter on the CPU, in the order of `Transformer.initialise`, and keeps its own part. So the
weights equal those of one process that builds the whole model. Those of a base are read from its files instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from models.convert import read_weights
from models.foreign import WRAPPED, Adapt, ForeignDecoder, foreign_weights
from models.presets import ForeignShape, ModelShape, Shape
from models.transformer import Decoder, Transformer
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.spec import TrainSpec
from tasks.training.adapters.config import LoraConfig
from tasks.training.adapters.lora import inject

Keep = Callable[[str, Tensor], None]


def new_decoder(shape: Shape, config: PretrainConfig, base: Path | None) -> Decoder:
    """The model of a run, on torch's default device. Of a foreign one, weights are not set."""
    if isinstance(shape, ModelShape):
        return Transformer(shape, mup_base_width=config.mup_base_width, mup_base_depth=config.mup_base_depth)
    assert base is not None
    return ForeignDecoder(base, shape, adapt_with(config.adapter))


def adapt_with(adapter: LoraConfig | None) -> Adapt | None:
    """Puts the adapter's layers, if there is one, into a module of transformers. Parts are trained in their place."""
    return None if adapter is None else partial(inject, "pretrain", adapter.low_rank)


def empty_decoder(spec: TrainSpec, device: torch.device) -> Decoder:
    """The model of a run on a device, with weights to be filled in."""
    with torch.device("meta"):
        model = new_decoder(spec.shape, spec.config, spec.base)
    return allocate(model, device)


def allocate(model: Decoder, device: torch.device) -> Decoder:
    """Allocate the parameters of a model, or of a part of one, that was built on the meta device."""
    model.to_empty(device=device)
    if isinstance(model, ForeignDecoder):
        model.restore()
        return model
    assert isinstance(model, Transformer)
    ends = [getattr(model, name) for name in ("embedding", "head")]
    if model.shape.tie_embeddings and all(hasattr(end, "weight") for end in ends):
        model.head.weight = model.embedding.weight  # to_empty unties them
    return model


@torch.no_grad()
def initial_weights(spec: TrainSpec, keep: Keep) -> None:
    """Call `keep(name, values)` for every parameter of the whole model, in float32. `values` live until it returns."""
    if spec.base is None:
        draw_weights(spec.own_shape, spec.config, keep)
        return
    shape = spec.shape
    found = read_weights(spec.base, shape) if isinstance(shape, ModelShape) else foreign_weights(spec.base, shape)
    transposed = spec.config.adapter is not None and _is_transposed(spec)
    for name, values in found:
        keep(name, values)
        magnitudes = name.replace(f"{WRAPPED}weight", ".lora_magnitude_vector.default.weight")
        if magnitudes != name and isinstance(shape, ForeignShape) and magnitudes in shape.sizes:
            keep(magnitudes, torch.linalg.norm(values.T if transposed else values, dim=1))
    if spec.config.adapter is not None:
        _draw_adapter(spec, keep)


def _is_transposed(spec: TrainSpec) -> bool:
    """Whether the base's linear layers have an input a row, as GPT-2's."""
    with torch.device("meta"):
        model: Any = new_decoder(spec.shape, spec.config, spec.base)
    return bool(model.theirs.peft_config["default"].fan_in_fan_out)


def _draw_adapter(spec: TrainSpec, keep: Keep) -> None:
    """A drawn as PEFT does, uniformly within ± 1 / √inputs, and B of zeros: at first the adapter changes nothing."""
    generator = torch.Generator().manual_seed(spec.config.seed)
    for name, size in whole_sizes(spec.shape):
        if ".lora_A." in name:
            keep(name, torch.empty(size).uniform_(-1, 1, generator=generator) / math.sqrt(size[1]))
        elif ".lora_B." in name:
            keep(name, torch.zeros(size))


def draw_weights(shape: ModelShape, config: PretrainConfig, keep: Keep) -> None:
    """Draw the weights of a new model."""
    torch.manual_seed(config.seed)
    drawn = cast(Transformer, _Drawn(shape, keep))
    Transformer.initialise(drawn, mup_base_width=config.mup_base_width, mup_base_depth=config.mup_base_depth)


def whole_sizes(shape: Shape) -> list[tuple[str, torch.Size]]:
    """Names and sizes of the whole model's parameters, in order, tied ones once."""
    if isinstance(shape, ForeignShape):
        return [(name, torch.Size(size)) for name, size in shape.sizes.items()]
    with torch.device("meta"):
        return [(name, value.shape) for name, value in Transformer(shape).named_parameters()]


class _Drawn:
    """The whole model, as `Transformer.initialise` sees it: a parameter is freed once `keep` has it."""

    def __init__(self, shape: ModelShape, keep: Keep) -> None:
        self.shape, self.keep = shape, keep

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Names of parameters, and memory for their initial values."""
        for name, size in whole_sizes(self.shape):
            drawn = torch.empty(size)
            yield name, drawn  # `initialise` fills it before it asks for the next one
            self.keep(name, drawn)
