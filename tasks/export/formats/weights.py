"""Rewrites the weights of a model folder: in a dtype, each tied weight once, in files of a maximum size.

It needs memory for one file, not for the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from models.pretrained import INDEX, WEIGHTS, empty_model, weight_files
from storage.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes per number
_FLOATS = ("F64", "F32", "F16", "BF16")  # safetensors' names. Any other dtype, as of an index, stays as it is


@dataclass(frozen=True)
class _Stored:
    """A tensor in a folder's files."""

    name: str
    file: Path
    numbers: int
    bytes: int  # in the written file


def write_weights(source: Path, target: Path, dtype: str, file_bytes: int) -> None:
    """Write model.safetensors, or numbered files and an index for more than `file_bytes`. A tensor is never split.
    Raises ConfigError for a number beyond the dtype's range."""
    from safetensors.torch import save_file

    stored = list(_stored(source, tied_names(source), dtype))
    files = _in_files(stored, file_bytes)
    names = (
        [WEIGHTS]
        if len(files) == 1
        else [f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
    )
    for name, tensors in zip(names, files, strict=True):
        save_file({one.name: _read(one, dtype) for one in tensors}, target / name, metadata={"format": "pt"})
    if len(files) > 1:
        places = {one.name: name for name, tensors in zip(names, files, strict=True) for one in tensors}
        parameters, size = sum(one.numbers for one in stored), sum(one.bytes for one in stored)
        totals = {"total_parameters": parameters, "total_size": size}
        index = {"metadata": totals, "weight_map": dict(sorted(places.items()))}
        (target / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def require_range(source: Path, dtype: str) -> None:
    """Raises ConfigError for a folder with a number beyond the dtype's range. Reads all of them."""
    for one in _stored(source, tied_names(source), dtype):
        _read(one, dtype)


def beyond(name: str, largest: float, dtype: str, remedy: str) -> ConfigError:
    """The error for weights beyond a dtype's range."""
    return ConfigError(f"{name} has weights up to {largest:.3g}, beyond the range of {dtype}.", remedy)


def count_parameters(folder: Path) -> int:
    """The number of weights of a model folder, counting a tied one once."""
    return sum(one.numbers for one in _stored(folder, tied_names(folder), "float32"))


def require_linear(folder: Path, format: str) -> None:
    """Raises ConfigError for a model with experts, whose matrices aren't in the linear layers that a format rounds."""
    inside = empty_model(folder).state_dict()
    if stacked := next((name for name, value in inside.items() if ".experts." in name and value.dim() == 3), None):
        raise ConfigError(
            f"{format} rounds linear layers, and {stacked} holds the matrices of all experts, so most of it would "
            "stay as it is.",
            f"Leave {format} out of export.formats: the kinds of gguf round experts too.",
        )


def tied_names(folder: Path) -> frozenset[str]:
    """The weights that a model shares with another of its weights, which are not stored twice."""
    return frozenset(empty_model(folder).all_tied_weights_keys)


def _stored(folder: Path, left_out: frozenset[str], dtype: str) -> Iterator[_Stored]:
    import math

    from safetensors import safe_open

    for file in weight_files(folder):
        with safe_open(file, framework="pt") as opened:
            for name in sorted({*opened.keys()} - left_out):
                part = opened.get_slice(name)
                numbers = math.prod(part.get_shape())
                yield _Stored(name, file, numbers, numbers * (WIDTHS[dtype] if part.get_dtype() in _FLOATS else 8))


def _in_files(tensors: list[_Stored], most: int) -> list[list[_Stored]]:
    files: list[list[_Stored]] = [[]]
    held = 0
    for one in tensors:
        if files[-1] and held + one.bytes > most:
            files.append([])
            held = 0
        files[-1].append(one)
        held += one.bytes
    return files


def _read(one: _Stored, dtype: str) -> Tensor:
    import torch
    from safetensors import safe_open

    with safe_open(one.file, framework="pt") as opened:
        tensor: Tensor = opened.get_tensor(one.name)
    if not tensor.is_floating_point():
        return tensor
    cast = tensor.to(getattr(torch, dtype))
    if not torch.isfinite(cast).all():
        wider = "bfloat16 or float32" if dtype == "float16" else "float32"
        raise beyond(one.name, float(tensor.abs().max()), dtype, f"Set export.dtype to {wider}.")
    return cast.contiguous()
