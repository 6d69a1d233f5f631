"""The checkpoint's matrices in an ONNX graph, dequantized and as the checkpoint has them.

Shapes: N rows, K columns, B blocks of a row, S columns of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from storage.shards.arrays import Float32
from tasks.export.formats.graphs.names import BLOCKS, TRANSPOSED

MIDDLE = 128  # stands for 0 in unsigned bytes


def matrices(path: Path) -> Iterator[tuple[str, Float32]]:
    """The weights of a graph with two dimensions, by the checkpoint's names. Of output weights that are the embeddings
    there is one."""
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
