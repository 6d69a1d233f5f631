"""The weights of a model folder written again: in a dtype, without those that are another one's, in files of a size.

Memory is needed for a file, not for the model.
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

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a number
_FLOATS = ("F64", "F32", "F16", "BF16")  # as safetensors names them; anything else, such as an index, stays as it is


@dataclass(frozen=True)
class _Stored:
    """A tensor in a folder's files."""

    name: str
    file: Path
    numbers: int
    bytes: int  # once written


def write_weights(source: Path, target: Path, dtype: str, file_bytes: int) -> None:
    """Write model.safetensors, or numbered ones and an index where all are more than `file_bytes`; a tensor is never
    cut. Raises ConfigError for a number that the dtype has not."""
    from safetensors.torch import save_file

    found = list(_stored(source, tied_names(source), dtype))
    files = _in_files(found, file_bytes)
    names = (
        [WEIGHTS]
        if len(files) == 1
        else [f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
    )
    for name, tensors in zip(names, files, strict=True):
        save_file({one.name: _read(one, dtype) for one in tensors}, target / name, metadata={"format": "pt"})
    if len(files) > 1:
        places = {one.name: name for name, tensors in zip(names, files, strict=True) for one in tensors}
        totals = {"total_parameters": sum(one.numbers for one in found), "total_size": sum(one.bytes for one in found)}
        index = {"metadata": totals, "weight_map": dict(sorted(places.items()))}
        (target / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def beyond(name: str, largest: float, dtype: str, remedy: str) -> ConfigError:
    """The refusal of weights that a dtype has no number for."""
    return ConfigError(f"{name} has weights up to {largest:.3g}, which {dtype} has no number for.", remedy)


def count_parameters(folder: Path) -> int:
    """The weights of a model folder, a tied one counted once."""
    return sum(one.numbers for one in _stored(folder, tied_names(folder), "float32"))


def tied_names(folder: Path) -> frozenset[str]:
    """The weights that a model takes from another one of its own: they are not stored twice."""
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
