"""The methods of rounding a model's layers, one block at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from storage.errors import ConfigError
from tasks.export.formats.compressed.awq import column_factors, scaled_inputs
from tasks.export.formats.compressed.calibration import Calibration, Inputs
from tasks.export.formats.compressed.folds import FOLDS, divide, fits, folds_of
from tasks.export.formats.compressed.gptq import gptq
from tasks.export.formats.compressed.layers import Blocks
from tasks.export.formats.compressed.rounding import Rounded, round_to, searched_scales, widest_scales
from tasks.export.formats.compressed.smooth import smoothing_factors
from tasks.export.formats.source import Source

Method = Literal["w4a16", "gptq", "awq", "w8a8"]
Layers = dict[str, Rounded]
_InputsBySet = dict[frozenset[str], Inputs]  # by the set of layers that share an input
_Factors = Callable[[Sequence[str], Tensor, Inputs], Tensor]  # (layers, their weights, their inputs) → column factors


@torch.no_grad()
def round_model(model: Any, blocks: Blocks, groups: Mapping[str, int], method: Method, source: Source) -> Layers:
    """Round every layer, and return them by name in the checkpoint. AWQ and w8a8 also change the model's norms and
    other layers.

    Raises ConfigError without text that a method needs, and for an architecture unknown to AWQ.
    """
    if method == "w8a8" and source.calibration and model.config.model_type in FOLDS:
        _smooth(Calibration(model, blocks, source.calibration, source.device))
    if method in ("w4a16", "w8a8"):
        return _by_themselves(blocks, groups, 4 if method == "w4a16" else 8, source.device)
    if not source.calibration:
        raise ConfigError(
            f"{method} needs text to calibrate on, and got none.",
            "Set export.calibration_tokens above 0, or choose w4a16, which needs none.",
        )
    block = _gptq_block if method == "gptq" else _awq_block
    calibration = Calibration(model, blocks, source.calibration, source.device)
    layers: Layers = {}
    for number in range(len(blocks.modules)):
        layers |= block(calibration, number, groups)
        calibration.advance(number)
    return layers


def _by_themselves(blocks: Blocks, groups: Mapping[str, int], bits: int, device: str) -> Layers:
    """Round to nearest, without clipping: scales with the least error of the weights make perplexity worse."""
    rounded: Layers = {}
    for number in range(len(blocks.modules)):
        for layer, linear in blocks.linears(number).items():
            name = blocks.name(number, layer)
            weights_RC = linear.weight.float().to(device)
            rounded[name] = _on_cpu(round_to(weights_RC, widest_scales(weights_RC, groups[name], bits), bits))
    return rounded


def _smooth(calibration: Calibration) -> None:
    """Fold SmoothQuant's factors into every block, by the inputs in the float model."""

    def factors(_: Sequence[str], weights_RC: Tensor, inputs: Inputs) -> Tensor:
        return smoothing_factors(weights_RC, inputs.peak_C)

    for number in range(len(calibration.blocks.modules)):
        _fold(calibration, number, _by_set(calibration, number, calibration.sets(number)), factors)
        calibration.advance(number)


def _gptq_block(calibration: Calibration, number: int, groups: Mapping[str, int]) -> Layers:
    """Round set by set in order of execution, each by its inputs from the rounded layers before it."""
    block: Layers = {}
    for layers in calibration.sets(number):
        inputs = calibration.inputs(number, layers[:1])[0]
        group = groups[calibration.blocks.name(number, layers[0])]
        rounded = gptq(_rows(calibration, number, layers), inputs.gram_CC, group)
        block |= _replace(calibration, number, layers, rounded)
    return block


def _awq_block(calibration: Calibration, number: int, groups: Mapping[str, int]) -> Layers:
    """Apply all folds of the block, then search the clipping of each set, by the inputs of the block's float layers."""
    sets = calibration.sets(number)
    inputs_by_set = _by_set(calibration, number, sets)

    def factors(fed: Sequence[str], weights_RC: Tensor, inputs: Inputs) -> Tensor:
        return column_factors(weights_RC, inputs, groups[calibration.blocks.name(number, fed[0])])

    _fold(calibration, number, inputs_by_set, factors)
    block: Layers = {}
    for layers in sets:
        weights_RC, group = _rows(calibration, number, layers), groups[calibration.blocks.name(number, layers[0])]
        scales_RG = searched_scales(weights_RC, group, 4, inputs_by_set[frozenset(layers)].gram_CC)
        block |= _replace(calibration, number, layers, round_to(weights_RC, scales_RG, 4))
    return block


def _by_set(calibration: Calibration, number: int, sets: Sequence[Sequence[str]]) -> _InputsBySet:
    inputs = calibration.inputs(number, [layers[0] for layers in sets])
    return dict(zip(map(frozenset, sets), inputs, strict=True))


def _fold(calibration: Calibration, number: int, inputs: _InputsBySet, factors: _Factors) -> None:
    """Scale the columns of the sets in the architecture's folds, and their inputs. Raises ConfigError for a fold whose
    layers don't share an input of their own."""
    blocks, linears = calibration.blocks, calibration.blocks.linears(number)
    for fold in folds_of(calibration.kind):
        fed, feeder = frozenset(fold.fed), blocks.modules[number].get_submodule(fold.feeder)
        if fed not in inputs:
            raise ConfigError(
                f"{', '.join(fold.fed)} of block {number} don't share an input of their own, as in a usual "
                f"{calibration.kind} model.",
                "Use gptq, which doesn't need this.",
            )
        if not fits(feeder, linears[fold.fed[0]]):
            continue
        factors_C = factors(fold.fed, _rows(calibration, number, fold.fed), inputs[fed])
        for layer in fold.fed:
            linears[layer].weight *= factors_C
        divide(feeder, factors_C, calibration.kind)
        inputs[fed] = scaled_inputs(inputs[fed], factors_C)


def _rows(calibration: Calibration, number: int, layers: Sequence[str]) -> Tensor:
    """The weights of layers with the same input, stacked by rows."""
    linears = calibration.blocks.linears(number)
    return torch.cat([linears[layer].weight.float() for layer in layers])


def _replace(calibration: Calibration, number: int, layers: Sequence[str], rounded: Rounded) -> Layers:
    """Put rounded weights into the block, and return them by layer."""
    linears, dense_RC = calibration.blocks.linears(number), rounded.dense()
    by_layer, start = {}, 0
    for layer in layers:
        part = slice(start, start + linears[layer].out_features)
        linears[layer].weight.copy_(dense_RC[part])
        rows = Rounded(rounded.codes_RC[part], rounded.scales_RG[part], rounded.bits)
        by_layer[calibration.blocks.name(number, layer)] = _on_cpu(rows)
        start = part.stop
    return by_layer


def _on_cpu(rounded: Rounded) -> Rounded:
    return Rounded(rounded.codes_RC.cpu(), rounded.scales_RG.cpu(), rounded.bits)
