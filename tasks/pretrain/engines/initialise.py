"""Initial weights, a parameter at a time: no rank holds the whole model at the start, whatever the engine.

Every rank draws every parameter on the CPU, in the order of `Transformer.initialise`, and keeps its own part. So the
weights equal those of one process that builds the whole model. Those of a base are read from its files instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor

from models.convert import read_weights
from models.presets import ModelShape
from models.transformer import Transformer
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.spec import TrainSpec

Keep = Callable[[str, Tensor], None]


def allocate(model: Transformer, device: torch.device) -> Transformer:
    """Allocate the parameters of a model, or of a part of one, that was built on the meta device."""
    model.to_empty(device=device)
    ends = [getattr(model, name) for name in ("embedding", "head")]
    if model.shape.tie_embeddings and all(hasattr(end, "weight") for end in ends):
        model.head.weight = model.embedding.weight  # to_empty unties them
    return model


@torch.no_grad()
def initial_weights(spec: TrainSpec, keep: Keep) -> None:
    """Call `keep(name, values)` for every parameter of the whole model, in float32. `values` live until it returns."""
    if spec.base is None:
        draw_weights(spec.shape, spec.config, keep)
        return
    for name, values in read_weights(spec.base, spec.shape):
        keep(name, values)


def draw_weights(shape: ModelShape, config: PretrainConfig, keep: Keep) -> None:
    """Draw the weights of a new model."""
    torch.manual_seed(config.seed)
    Transformer.initialise(cast(Transformer, _Drawn(shape, keep)), mup_base_width=config.mup_base_width)


def whole_sizes(shape: ModelShape) -> list[tuple[str, torch.Size]]:
    """Names and sizes of the whole model's parameters, in order, tied ones once."""
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
