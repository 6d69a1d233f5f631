"""Models of one base combined into one, by PEFT's functions for tensors, which it uses to merge adapters.

A merged adapter has added its product of matrices to the base, so adapters and models that were trained whole are
merged alike. PEFT's own merging of adapters combines the factors A and B of each instead, unless asked for products
(`cat`, or a `combination_type` that ends in `_svd`). Those give what this gives, but for the rank that they cut to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models.pretrained import load_pretrained, weights_for
from storage.errors import ConfigError
from tasks.posttrain.merge.config import MergeConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DENSITY = 0.5


def combined(config: MergeConfig, base: Path, models: Mapping[str, Path]) -> tuple[PreTrainedModel, list[float]]:
    """The merged model in float32, and the norm of each model's change to the base, and of the result's.

    Raises ConfigError for a model whose tensors have other names or shapes than the base's.
    """
    merged = load_pretrained(base)
    held, squares = merged.state_dict(), [0.0] * (len(models) + 1)
    weights = torch.tensor(config.weights)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(config.seed)
        for name, start, others in _in_step(merged, base, models):
            changes = [other.float() - start.float() for other in others]
            change = _combined(config, changes, weights)
            held[name].copy_(start.float() + change)
            squares = [
                total + float(one.square().sum()) for total, one in zip(squares, [*changes, change], strict=True)
            ]
    return merged, [total**0.5 for total in squares]


def _combined(config: MergeConfig, changes: Sequence[Tensor], weights: Tensor) -> Tensor:
    from peft.utils import merge_utils

    if config.method == "linear":
        return merge_utils.task_arithmetic(list(changes), weights)
    combine: Any = getattr(merge_utils, config.method)
    result: Tensor = combine(list(changes), weights, DENSITY if config.density is None else config.density)
    return result


def _in_step(
    model: PreTrainedModel, base: Path, models: Mapping[str, Path]
) -> Iterator[tuple[str, Tensor, list[Tensor]]]:
    """Each tensor's name and its values in the base and in the models, one at a time in memory."""
    others = {name: weights_for(model, folder) for name, folder in models.items()}
    for name, start in weights_for(model, base):
        values = []
        for other, tensors in others.items():
            found, value = next(tensors, ("", start))
            if found != name or value.shape != start.shape:
                raise _unlike(other, name, start, found, value)
            values.append(value)
        yield name, start, values
    for other, tensors in others.items():
        if (more := next(tensors, None)) is not None:
            raise _unlike(other, "", more[1], *more)


def _unlike(other: str, name: str, start: Tensor, found: str, value: Tensor) -> ConfigError:
    has = f"{found} of shape {list(value.shape)}" if found else "nothing more"
    expected = f"{name} of shape {list(start.shape)}" if name else "nothing more"
    return ConfigError(
        f"merge.models: {other} has {has} where the base of the chain has {expected}.",
        "Merge models that were trained from this base, with its sizes.",
    )
