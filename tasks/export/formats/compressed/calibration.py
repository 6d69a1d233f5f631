"""Runs a model block by block over windows of text, for the inputs of each linear layer after all layers before it are
quantized.

Memory holds the windows' activations at the entrance of one block, N × T × C numbers of 4 bytes for N windows of T
tokens and width C, and, during a block, its weights and one Gram matrix (C, C) for each requested set of layers. Only
the latter are on the device. The rest of the model stays where it was loaded.

Shapes: T tokens of a window, C columns of a weight (inputs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from storage.errors import ConfigError
from tasks.export.formats.compressed.layers import Blocks


@dataclass
class Inputs:
    """Statistics of a layer's inputs over all tokens: the Gram matrix, and the sum and peak of magnitudes by column."""

    gram_CC: Tensor
    magnitude_C: Tensor
    peak_C: Tensor
    tokens: int = 0

    def add(self, x_TC: Tensor) -> None:
        """Count more tokens."""
        self.gram_CC += x_TC.T @ x_TC
        self.magnitude_C += x_TC.abs().sum(0)
        self.peak_C = torch.maximum(self.peak_C, x_TC.abs().amax(0))
        self.tokens += len(x_TC)


class _Reached(Exception):
    """Ends a forward pass at the last layer of interest."""


class Calibration:
    """The windows on their way through a model. Blocks are taken in order, and `advance` ends one."""

    def __init__(self, model: Any, blocks: Blocks, windows: Sequence[Sequence[int]], device: str) -> None:
        self.blocks, self.device, self.kind = blocks, device, str(model.config.model_type)
        self._passed: dict[int, list[dict[str, Any]]] = {}  # arguments other than activations, by length and block
        self._entering: list[Tensor] = []
        for ids in windows:
            if len(ids) not in self._passed:
                self._passed[len(ids)] = _arguments(model, blocks, ids)
            self._entering.append(_embedded(model, blocks, ids))
        blocks.modules[0].to(device)

    def sets(self, number: int) -> list[list[str]]:
        """Names of the block's linear layers in their order of execution, those with the same input together.

        Raises ConfigError for a layer that doesn't run.
        """
        seen: list[tuple[Tensor, list[str]]] = []

        def look(name: str) -> Callable[..., None]:
            def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
                for tensor, names in seen:
                    if tensor is args[0]:
                        names.append(name)
                        return
                seen.append((args[0], [name]))

            return hook

        linears = self.blocks.linears(number)
        handles = [layer.register_forward_pre_hook(look(name)) for name, layer in linears.items()]
        try:
            self._run(number, 0)
        finally:
            for handle in handles:
                handle.remove()
        sets = [names for _, names in seen]
        for name in linears.keys() - {name for names in sets for name in names}:
            raise ConfigError(
                f"{self.blocks.name(number, name)} doesn't run in a forward pass, so it can't be calibrated.",
                "Leave gptq and awq out of export.formats.",
            )
        return sets

    def inputs(self, number: int, layers: Sequence[str]) -> list[Inputs]:
        """The inputs of some layers of a block, given in their order of execution."""
        linears = self.blocks.linears(number)
        counted = [_no_inputs(linears[name].in_features, self.device) for name in layers]

        def count(inputs: Inputs, last: bool) -> Callable[..., None]:
            def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
                inputs.add(args[0].flatten(0, -2).float())
                if last:
                    raise _Reached

            return hook

        handles = [
            linears[name].register_forward_pre_hook(count(inputs, name == layers[-1]))
            for name, inputs in zip(layers, counted, strict=True)
        ]
        try:
            for window in range(len(self._entering)):
                try:
                    self._run(number, window)
                except _Reached:
                    continue
        finally:
            for handle in handles:
                handle.remove()
        return counted

    def advance(self, number: int) -> None:
        """Run the activations through a block as it is now, and move the next block to the device."""
        for window in range(len(self._entering)):
            self._entering[window] = self._run(number, window).cpu()
        self.blocks.modules[number].cpu()
        if number + 1 < len(self.blocks.modules):
            self.blocks.modules[number + 1].to(self.device)

    @torch.no_grad()
    def _run(self, number: int, window: int) -> Tensor:
        entering = self._entering[window]
        passed = self._passed[entering.shape[1]][number]
        return _first(self.blocks.modules[number](entering.to(self.device), **_on(passed, self.device)))


def _no_inputs(width: int, device: str) -> Inputs:
    gram_CC = torch.zeros(width, width, device=device)
    return Inputs(gram_CC, torch.zeros(width, device=device), torch.zeros(width, device=device))


@torch.no_grad()
def _embedded(model: Any, blocks: Blocks, ids: Sequence[int]) -> Tensor:
    """The activations (1, T, C) that enter the first block."""
    entering: list[Tensor] = []

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entering.append(_activations(args, kwargs))
        raise _Reached

    handle = blocks.modules[0].register_forward_pre_hook(hook, with_kwargs=True)
    try:
        model.base_model(torch.tensor([list(ids)]), use_cache=False)
    except _Reached:
        pass
    finally:
        handle.remove()
    return entering[0]


@torch.no_grad()
def _arguments(model: Any, blocks: Blocks, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Each block's arguments other than activations (positions, masks), which depend only on a window's length.

    Raises ConfigError for a model whose blocks don't simply follow each other.
    """
    passed: list[dict[str, Any]] = []
    left: list[Tensor] = []

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(args) > 1 or (left and not torch.equal(left[-1], _activations(args, kwargs))):
            raise ConfigError(
                f"The blocks of a {model.config.model_type} model pass each other more than activations.",
                "Leave gptq and awq out of export.formats.",
            )
        passed.append({name: value for name, value in kwargs.items() if name != "hidden_states"})

    def after(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        left[:] = [_first(output)]

    handles = [block.register_forward_pre_hook(before, with_kwargs=True) for block in blocks.modules]
    handles += [block.register_forward_hook(after) for block in blocks.modules]
    try:
        model.base_model(torch.tensor([list(ids)]), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return passed


def _activations(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    activations: Tensor = args[0] if args else kwargs["hidden_states"]
    return activations


def _first(output: Any) -> Tensor:
    first: Tensor = output[0] if isinstance(output, tuple) else output
    return first


def _on(value: Any, device: str) -> Any:
    """Move tensors within tuples and dicts to a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _on(one, device) for name, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_on(one, device) for one in value)
    return value
