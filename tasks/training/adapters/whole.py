"""The parts of a model that are trained whole beside an adapter, or frozen: which of its modules they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from storage.errors import ConfigError
from tasks.training.adapters.config import Part

if TYPE_CHECKING:
    from torch import nn


def modules_of(model: nn.Module, head: nn.Module | None) -> dict[Part, list[str]]:
    """The names of the modules of each part. `head` is the model's output layer."""
    from torch import nn

    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    inner = {module for layers in lists for module in layers.modules()}
    named = list(model.named_modules())
    return {
        "embedding": [name for name, module in named if isinstance(module, nn.Embedding) and module not in inner],
        "head": [name for name, module in named if module is head],
        "norms": [
            name
            for name, module in named
            if "norm" in type(module).__name__.lower() and [*module.parameters(recurse=False)]
        ],
    }


def modules_to_train(section: str, parts: Sequence[Part], model: nn.Module, head: nn.Module | None) -> list[str]:
    """The names of the modules of these parts. Raises ConfigError for parts that the model lacks, and for one of two
    that are one matrix."""
    by_part = modules_of(model, head)
    parameters = {
        part: {id(value) for name in names for value in model.get_submodule(name).parameters(recurse=False)}
        for part, names in by_part.items()
    }
    if missing := [part for part in parts if not parameters[part]]:
        raise ConfigError(f"{section} has {missing[0]}, which the model lacks.", f"Leave {missing[0]} out.")
    ends = {*parts} & {"embedding", "head"}
    if len(ends) == 1 and parameters["embedding"] & parameters["head"]:
        raise ConfigError(
            f"{section} has {ends.pop()}, but the model's embedding and head are one matrix.", "Name both, or neither."
        )
    return [name for part in dict.fromkeys(parts) for name in by_part[part]]


def tie_copies(model: Any) -> None:
    """Make one of the copies that PEFT trains of embedding and head, if the originals are one matrix. PEFT can too
    (`ensure_weight_tying`), but a GPT-2 that it saves so is untied when it loads it."""
    from peft.utils import ModulesToSaveWrapper

    first, last = model.get_input_embeddings(), model.get_output_embeddings()
    if not isinstance(first, ModulesToSaveWrapper) or not isinstance(last, ModulesToSaveWrapper):
        return
    if first.original_module.weight is last.original_module.weight:
        last.modules_to_save["default"].weight = first.modules_to_save["default"].weight
