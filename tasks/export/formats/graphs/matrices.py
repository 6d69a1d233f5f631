"""The checkpoint's matrices in an ONNX graph: the suffixes of their names, and their values as in the checkpoint.

Shapes: N rows, K columns, B blocks of a row, S columns of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from storage.shards.arrays import Float32

TRANSPOSED = ".transposed"  # as matrix products hold them
TIED = ".tied"  # computed from the embeddings
BLOCKS = ".transposed_Q8"  # onnxruntime's suffix for quantized weights
MIDDLE = 128  # stands for 0 in unsigned bytes


def matrices(path: Path) -> Iterator[tuple[str, Float32]]:
    """The matrices of a graph, dequantized, under the checkpoint's names. Output weights tied to the embeddings appear
    once."""
    graph: Any = import_module("onnx_ir").load(path).graph
    constants = {name: value.const_value for name, value in graph.initializers.items()}
    quantized = {node.inputs[1].name: node for node in graph if node.op_type == "MatMulNBits"}
    scales = {node.inputs[2].name for node in quantized.values()}
    for name in sorted(constants):
        if name in quantized:
            blocks_NBS = constants[name].numpy().astype(np.float32) - MIDDLE
            scales_NB = constants[quantized[name].inputs[2].name].numpy().reshape(blocks_NBS.shape[:2])
            whole = (blocks_NBS * scales_NB[..., None]).reshape(len(blocks_NBS), -1)
            yield name.removesuffix(BLOCKS), whole[:, : quantized[name].attributes["K"].value]
        elif len(constants[name].shape) == 2 and name not in scales:
            array = constants[name].numpy()
            yield name.removesuffix(TRANSPOSED), np.ascontiguousarray(array.T) if name.endswith(TRANSPOSED) else array
