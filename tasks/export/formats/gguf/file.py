"""Writes a GGUF file, one tensor in memory at a time.

llama.cpp's converter scripts refuse a vocabulary that they don't know, so the file is written here with the `gguf`
package.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from models.pretrained import load_config
from storage.shards.arrays import AnyArray, Float32
from tasks.export.formats.gguf.architecture import architecture_of, layers_of, write_architecture
from tasks.export.formats.gguf.kinds import FILE_TYPES, KINDS, GgufKind
from tasks.export.formats.gguf.quantize import dequantize, fitting, quantize, quantized_bytes
from tasks.export.formats.gguf.tensors import EMBEDDING, OUTPUT, Names
from tasks.export.formats.gguf.vocabulary import write_vocabulary
from tasks.export.formats.weights import beyond

if TYPE_CHECKING:
    from gguf import GGUFWriter

FLOAT16_LARGEST = 65504
QUANTIZATION_VERSION = 2  # of ggml's blocks
_POSITIONS = "position_embd.weight"  # llama.cpp adds it to the embedding in float32
_ROUTER = ".ffn_gate_inp.weight"  # which llama.cpp's own tools never round


def write_gguf(
    model: Path,
    path: Path,
    kind: GgufKind,
    *,
    importance: Mapping[str, Float32] | None = None,
    name: str = "",
    licence: str = "",
) -> None:
    """Write a folder's model as one file. `importance` holds, by a matrix's name in the checkpoint, the mean square of
    its inputs by column.

    Raises ConfigError for a model that llama.cpp would compute differently, and for weights that a type can't hold.
    """
    from gguf import GGMLQuantizationType, GGUFWriter

    config = load_config(model)
    known = architecture_of(config)
    names = Names(config, known)
    shapes = {tensor: values.shape for _, tensor, values in names.tensors(model)}
    types = _types_of(shapes, kind, layers_of(config))
    writer = GGUFWriter(path, known.name)
    parameters = sum(int(np.prod(shape)) for shape in shapes.values())
    _write_description(writer, kind, parameters, name, licence, importance)
    write_architecture(writer, config, known, shapes[EMBEDDING][0])
    write_vocabulary(writer, model, shapes[EMBEDDING][0])
    for tensor, shape in shapes.items():
        size = quantized_bytes(types[tensor], shape)
        writer.add_tensor_info(tensor, shape, np.dtype(np.float32), size, GGMLQuantizationType[types[tensor]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for theirs, tensor, values in names.tensors(model):
        inputs = (importance or {}).get(theirs)
        with np.errstate(over="ignore", invalid="ignore"):  # overflow of float16 is refused below, by name
            rounded = quantize(values, types[tensor], inputs)
            _require_held(theirs, values, rounded, types[tensor], kind)
        writer.write_tensor_data(rounded)
    writer.close()


def require_range(model: Path, kind: GgufKind) -> None:
    """Raises ConfigError for a model with weights that this kind of file can't hold. Reads all of them."""
    config = load_config(model)
    names = Names(config, architecture_of(config))
    types = _types_of({tensor: values.shape for _, tensor, values in names.tensors(model)}, kind, layers_of(config))
    for theirs, tensor, values in names.tensors(model):
        if np.abs(values).max() > FLOAT16_LARGEST:
            with np.errstate(over="ignore", invalid="ignore"):
                _require_held(theirs, values, quantize(values, types[tensor]), types[tensor], kind)


def _types_of(shapes: Mapping[str, tuple[int, ...]], kind: GgufKind, layers: int) -> dict[str, str]:
    tied = OUTPUT not in shapes
    return {tensor: type_of(tensor, shape, kind, layers, tied=tied) for tensor, shape in shapes.items()}


def _require_held(name: str, values: Float32, rounded: AnyArray, type: str, kind: GgufKind) -> None:
    """Raises ConfigError for weights beyond float16, the dtype of most types' scales."""
    largest = float(np.abs(values).max())
    if largest > FLOAT16_LARGEST and not np.isfinite(dequantize(rounded, type)).all():
        remedy = f"Leave gguf-{kind} out of export.formats: gguf-f32 and gguf-bf16 hold the model."
        raise beyond(name, largest, "float16", remedy)


def type_of(name: str, shape: tuple[int, ...], kind: GgufKind, layers: int, *, tied: bool) -> str:
    """The type of a tensor in a kind of file, or the one that stands in for it."""
    return fitting(nominal_type(name, shape, kind, layers, tied=tied), shape[-1])


def nominal_type(name: str, shape: tuple[int, ...], kind: GgufKind, layers: int, *, tied: bool) -> str:
    """The type that a kind of file assigns to a tensor. A tied embedding counts as the output layer."""
    if len(shape) < 2 or name == _POSITIONS or name.endswith(_ROUTER):
        return "F32"
    mixed = KINDS[kind]
    if name == OUTPUT or (name == EMBEDDING and tied):
        return mixed.output or mixed.type
    if name.startswith("blk."):
        _, layer, part, _ = name.split(".")
        return mixed.of(part.removesuffix("_exps"), int(layer), layers)
    return mixed.type


def _write_description(
    writer: GGUFWriter,
    kind: GgufKind,
    parameters: int,
    name: str,
    licence: str,
    importance: Mapping[str, Float32] | None,
) -> None:
    from gguf import LlamaFileType
    from gguf.utility import model_weight_count_rounded_notation

    writer.add_type("model")
    if name:
        writer.add_name(name)
    writer.add_size_label(model_weight_count_rounded_notation(parameters))
    if licence:
        writer.add_license(licence)
    writer.add_file_type(LlamaFileType[FILE_TYPES[kind]])
    writer.add_quantization_version(QUANTIZATION_VERSION)
    if importance:
        writer.add_int32("quantize.imatrix.entries_count", len(importance))
