"""The files of a compressed-tensors checkpoint, which vLLM and transformers load.

A 4-bit layer has `weight_packed`, `weight_scale` and `weight_shape` in place of `weight`. An 8-bit layer keeps the name
`weight` and adds a `weight_scale`. All other tensors stay as they are, in their dtype. `quantization_config` in
config.json says which layers have which form. No library writes it, so the same model gives the same bytes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.pretrained import WEIGHTS, empty_model, weight_files
from models.runtimes.protocol import RuntimeFault
from storage.errors import ConfigError
from tasks.export.formats.compressed.layers import find_blocks, targets_of
from tasks.export.formats.compressed.packing import pack, unpack
from tasks.export.formats.compressed.rounding import Rounded, dense
from tasks.export.formats.config import write_config
from tasks.export.formats.tokenizer import write_tokenizer

PACKED, SCALE, SHAPE, WEIGHT = "weight_packed", "weight_scale", "weight_shape", "weight"
_COPIED = ("generation_config.json",)


def write_checkpoint(
    source: Path, folder: Path, layers: Mapping[str, Rounded], ignored: Sequence[str], changed: Mapping[str, Tensor]
) -> None:
    """Write the checkpoint of the folder `source` with these layers rounded and the `ignored` linear layers plain.
    `changed` holds the model's tensors after folding. Raises ConfigError for a layer whose name isn't in the
    checkpoint."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    tensors: dict[str, Tensor] = {}
    waiting = {f"{name}.{WEIGHT}": name for name in layers}
    for name, value in raw_tensors(source):
        if name in waiting:
            tensors |= _parts(waiting.pop(name), layers)
        else:
            tensors[name] = changed[name].to(value.dtype) if name in changed else value
    for name in waiting:
        raise ConfigError(
            f"The checkpoint lacks {name}: transformers loads this architecture under other names than it stores.",
            "Leave w4a16, gptq, awq and w8a8 out of export.formats.",
        )
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / WEIGHTS, {"format": "pt"})
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = quantization_config(layers, ignored)
    write_config(folder, config)
    write_tokenizer(source, folder)
    for name in _COPIED:
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)


def quantization_config(layers: Mapping[str, Rounded], ignored: Sequence[str]) -> dict[str, Any]:
    """The description of the layers in config.json: a config group for each number of columns that share a scale."""
    bits = next(iter(layers.values())).bits
    forms = {name: rounded.group for name, rounded in layers.items()}
    activations = _arguments(8, "token", dynamic=True) if bits == 8 else None
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if bits == 8 else "pack-quantized",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": list(ignored),
        "config_groups": {
            f"group_{number}": {
                "targets": targets,
                "weights": _arguments(bits, "channel" if group is None else "group", group_size=group),
                "input_activations": activations,
                "output_activations": None,
            }
            for number, (group, targets) in enumerate(targets_of(forms))
        },
    }


def dense_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The dequantized tensors of a checkpoint in float32, under their original names. Raises ValueError for a layer
    with a part that is missing or doesn't fit the others."""
    stored = dict(raw_tensors(folder))
    for name, value in stored.items():
        layer, _, part = name.rpartition(".")
        if part in (SCALE, SHAPE):
            if f"{layer}.{PACKED}" not in stored and f"{layer}.{WEIGHT}" not in stored:
                raise ValueError(f"the weight of {name} is missing")
        elif part == PACKED or value.dtype == torch.int8:
            yield f"{layer}.{WEIGHT}", _dense(layer, stored)
        else:
            yield name, value.float()


def require_whole(folder: Path) -> None:
    """Raises RuntimeFault for a checkpoint that can't be read, or that lacks a part of a layer in its config."""
    from safetensors import SafetensorError

    try:
        shapes = {name: tuple(value.shape) for name, value in dense_tensors(folder)}
    except (SafetensorError, ValueError, OSError) as error:
        raise RuntimeFault(f"{folder} can't be loaded: {error}") from error
    blocks = find_blocks(empty_model(folder))
    for number in range(len(blocks.modules)):
        for layer, linear in blocks.linears(number).items():
            name = f"{blocks.name(number, layer)}.{WEIGHT}"
            if shapes.get(name) != tuple(linear.weight.shape):
                raise RuntimeFault(f"{folder} can't be loaded: {name} is missing or its shape differs from the config")


def raw_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of a folder's files as stored, by name. One is in memory at a time."""
    from safetensors import safe_open

    for file in weight_files(folder):
        with safe_open(file, framework="pt") as opened:
            for tensor in sorted(opened.keys()):
                yield tensor, opened.get_tensor(tensor)


def _parts(name: str, layers: Mapping[str, Rounded]) -> dict[str, Tensor]:
    rounded = layers[name]
    if rounded.bits == 8:
        return {f"{name}.{WEIGHT}": rounded.codes_RC, f"{name}.{SCALE}": rounded.scales_RG}
    shape = torch.tensor(rounded.codes_RC.shape)
    return {f"{name}.{PACKED}": pack(rounded.codes_RC), f"{name}.{SCALE}": rounded.scales_RG, f"{name}.{SHAPE}": shape}


def _dense(layer: str, stored: Mapping[str, Tensor]) -> Tensor:
    packed, scales_RG = stored.get(f"{layer}.{PACKED}"), stored.get(f"{layer}.{SCALE}")
    if scales_RG is None:
        raise ValueError(f"{layer}.{SCALE} is missing")
    if packed is None:
        codes_RC = stored[f"{layer}.{WEIGHT}"]
    else:
        codes_RC, shape = unpack(packed), stored.get(f"{layer}.{SHAPE}")
        if shape is None or shape.tolist() != list(codes_RC.shape):
            raise ValueError(f"{layer}.{SHAPE} is missing or differs from that of its {PACKED}")
    if len(scales_RG) != len(codes_RC) or codes_RC.shape[1] % scales_RG.shape[1]:
        raise ValueError(f"{layer}.{SCALE} doesn't fit its weight")
    return dense(codes_RC, scales_RG)


def _arguments(bits: int, strategy: str, *, group_size: int | None = None, dynamic: bool = False) -> dict[str, Any]:
    return {
        "num_bits": bits,
        "type": "int",
        "symmetric": True,
        "strategy": strategy,
        "group_size": group_size,
        "dynamic": dynamic,
    }
