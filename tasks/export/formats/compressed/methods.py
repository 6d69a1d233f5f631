"""The ways to round a model's layers, one block at a time."""

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
_InputsBySet = dict[frozenset[str], Inputs]  # of layers that have the same input
_Factors = Callable[[Sequence[str], Tensor, Inputs], Tensor]  # of the columns of layers, by their weights and inputs


@torch.no_grad()
def round_model(model: Any, blocks: Blocks, groups: Mapping[str, int], method: Method, source: Source) -> Layers:
    """Every layer, rounded, by its name in the checkpoint; AWQ and w8a8 change the model's norms and other layers too.

    Raises ConfigError where there is nothing to calibrate on, and for an architecture that AWQ does not know.
    """
    if method == "w8a8" and source.calibration and model.config.model_type in FOLDS:
        _smooth(Calibration(model, blocks, source.calibration, source.device))
    if method in ("w4a16", "w8a8"):
        return _by_themselves(blocks, groups, 4 if method == "w4a16" else 8, source.device)
    if not source.calibration:
        raise ConfigError(
            f"{method} needs text to calibrate on, and there is none.",
            "Set export.calibration_tokens above 0, or choose w4a16, which needs none.",
        )
    block = _gptq_block if method == "gptq" else _awq_block
    calibration = Calibration(model, blocks, source.calibration, source.device)
    found: Layers = {}
    for number in range(len(blocks.modules)):
        found |= block(calibration, number, groups)
        calibration.advance(number)
    return found


def _by_themselves(blocks: Blocks, groups: Mapping[str, int], bits: int, device: str) -> Layers:
    """Round to nearest. Nothing is clipped: scales of the least error of the weights make perplexity worse."""
    found: Layers = {}
    for number in range(len(blocks.modules)):
        for layer, linear in blocks.linears(number).items():
            name = blocks.name(number, layer)
            weights_RC = linear.weight.float().to(device)
            found[name] = _stored(round_to(weights_RC, widest_scales(weights_RC, groups[name], bits), bits))
    return found


def _smooth(calibration: Calibration) -> None:
    """Fold SmoothQuant's factors into every block, by the inputs that the float model has."""

    def factors(_: Sequence[str], weights_RC: Tensor, given: Inputs) -> Tensor:
        return smoothing_factors(weights_RC, given.peak_C)

    for number in range(len(calibration.blocks.modules)):
        _fold(calibration, number, _by_set(calibration, number, calibration.sets(number)), factors)
        calibration.advance(number)


def _gptq_block(calibration: Calibration, number: int, groups: Mapping[str, int]) -> Layers:
    """Set by set in the order in which they run, each with the inputs that the rounded layers before it make."""
    found: Layers = {}
    for layers in calibration.sets(number):
        inputs = calibration.inputs(number, layers[:1])[0]
        group = groups[calibration.blocks.name(number, layers[0])]
        rounded = gptq(_rows(calibration, number, layers), inputs.gram_CC, group)
        found |= _replaced(calibration, number, layers, rounded)
    return found


def _awq_block(calibration: Calibration, number: int, groups: Mapping[str, int]) -> Layers:
    """All folds of the block, then for each set where to clip, by the inputs that the block's float layers have."""
    sets = calibration.sets(number)
    inputs = _by_set(calibration, number, sets)

    def factors(fed: Sequence[str], weights_RC: Tensor, given: Inputs) -> Tensor:
        return column_factors(weights_RC, given, groups[calibration.blocks.name(number, fed[0])])

    _fold(calibration, number, inputs, factors)
    found: Layers = {}
    for layers in sets:
        weights_RC, group = _rows(calibration, number, layers), groups[calibration.blocks.name(number, layers[0])]
        scales_RG = searched_scales(weights_RC, group, 4, inputs[frozenset(layers)].gram_CC)
        found |= _replaced(calibration, number, layers, round_to(weights_RC, scales_RG, 4))
    return found


def _by_set(calibration: Calibration, number: int, sets: Sequence[Sequence[str]]) -> _InputsBySet:
    found = calibration.inputs(number, [layers[0] for layers in sets])
    return dict(zip(map(frozenset, sets), found, strict=True))


def _fold(calibration: Calibration, number: int, inputs: _InputsBySet, factors: _Factors) -> None:
    """Scale the columns of the sets that a fold knows, and their inputs. Raises ConfigError for a set that the
    architecture should not have."""
    blocks, linears = calibration.blocks, calibration.blocks.linears(number)
    for fold in folds_of(calibration.kind):
        fed, feeder = frozenset(fold.fed), blocks.modules[number].get_submodule(fold.feeder)
        if fed not in inputs:
            raise ConfigError(
                f"{', '.join(fold.fed)} of block {number} do not have one input to themselves, as in a usual "
                f"{calibration.kind} model.",
                "Take gptq, which needs no such knowledge.",
            )
        if not fits(feeder, linears[fold.fed[0]]):
            continue
        factors_C = factors(fold.fed, _rows(calibration, number, fold.fed), inputs[fed])
        for layer in fold.fed:
            linears[layer].weight *= factors_C
        divide(feeder, factors_C, calibration.kind)
        inputs[fed] = scaled_inputs(inputs[fed], factors_C)


def _rows(calibration: Calibration, number: int, layers: Sequence[str]) -> Tensor:
    """The weights of layers that have the same input, one below the other."""
    linears = calibration.blocks.linears(number)
    return torch.cat([linears[layer].weight.float() for layer in layers])


def _replaced(calibration: Calibration, number: int, layers: Sequence[str], rounded: Rounded) -> Layers:
    """Put rounded weights into the block, and give them by layer."""
    linears, dense_RC = calibration.blocks.linears(number), rounded.dense()
    found, start = {}, 0
    for layer in layers:
        part = slice(start, start + linears[layer].out_features)
        linears[layer].weight.copy_(dense_RC[part])
        ones = Rounded(rounded.codes_RC[part], rounded.scales_RG[part], rounded.bits)
        found[calibration.blocks.name(number, layer)] = _stored(ones)
        start = part.stop
    return found


def _stored(rounded: Rounded) -> Rounded:
    """Off the device."""
    return Rounded(rounded.codes_RC.cpu(), rounded.scales_RG.cpu(), rounded.bits)
