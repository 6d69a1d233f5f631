"""Quantizes matrices to llama.cpp's types by its own functions, as the `gguf` package lacks k-quants and codebooks.

An importance matrix says how large the inputs of a matrix are, by column: errors in large columns count for more.
"""

from __future__ import annotations

import ctypes

import numpy as np

from storage.shards.arrays import AnyArray, Float32
from tasks.export.formats.gguf.kinds import SMALLER_BLOCKS

_OWN = ("F32", "F16", "BF16")  # types without blocks, which `gguf` rounds


def fitting(kind: str, columns: int) -> str:
    """The type itself, or the one that stands in for it if its blocks don't divide rows of `columns` columns."""
    names = (kind, SMALLER_BLOCKS.get(kind, "F16"))
    return next((name for name in names if columns % block_of(name) == 0), "F16")


def block_of(kind: str) -> int:
    """The number of weights in a block."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    return GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]


def quantized_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """The bytes of a tensor in a type."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    return int(np.prod(shape)) // block * size


def quantize(values: Float32, kind: str, importance: Float32 | None = None) -> AnyArray:
    """Rows × bytes of a matrix, or of several one below the other, in a type. `importance` is the mean square of its
    inputs, by column."""
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize as by_gguf

    from models.runtimes.llama_library import library

    chosen = GGMLQuantizationType[kind]
    source = np.ascontiguousarray(values, np.float32)
    if kind in _OWN:
        rounded: AnyArray = by_gguf(source, chosen)
        return rounded
    source = source.reshape(-1, source.shape[-1])
    rows, columns = source.shape
    quantized = np.zeros((rows, quantized_bytes(kind, (columns,))), np.uint8)
    weighed = None if importance is None else np.ascontiguousarray(importance, np.float32)
    written = library().ggml_quantize_chunk(
        int(chosen),
        source.ctypes.data,
        quantized.ctypes.data,
        0,
        rows,
        columns,
        None if weighed is None else ctypes.c_void_p(weighed.ctypes.data),
    )
    assert written == quantized.nbytes
    return quantized


def dequantize(data: AnyArray, kind: str) -> Float32:
    """The numbers that a runtime computes with."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize as by_gguf

    values: Float32 = by_gguf(data, GGMLQuantizationType[kind]).astype(np.float32)
    return values
