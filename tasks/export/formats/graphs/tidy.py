"""Gives a graph of torch's exporter the names that users know, and removes traces of the machine that made it.

The exporter numbers folded weights and dimensions, and notes each node's place in the code. A folded weight is
identified by its content, which is that of a parameter, transposed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import chain
from typing import Any

import numpy as np
from torch import Tensor

from storage.shards.arrays import AnyArray
from tasks.export.formats.graphs.decoder import PREFIX
from tasks.export.formats.graphs.matrices import TIED, TRANSPOSED


def tidy(model: Any, parameters: Mapping[str, Tensor]) -> int:
    """Rename and clean a graph of onnx_ir in place, and return the bytes of its weights. The graph computes a weight
    that is another's transpose from the other."""
    _forget_the_machine(model)
    _name_dimensions(model.graph)
    _name_weights(model.graph, parameters)
    _tie(model.graph)
    return sum(int(value.const_value.nbytes) for value in model.graph.initializers.values())


def _forget_the_machine(model: Any) -> None:
    """Remove stack traces, which name files of this machine."""
    for part in (model, model.graph, *model.graph.all_nodes(), *_values(model.graph)):
        part.metadata_props.clear()
        part.doc_string = None


def _name_dimensions(graph: Any) -> None:
    """Name B, T and P `batch`, `sequence` and `past`, and P + T `past + sequence`."""
    ir = import_module("onnx_ir")
    shapes = {value.name: value.shape for value in graph.inputs}
    (batch, new), whole = shapes["input_ids"], shapes["attention_mask"][1]
    past = shapes["past_key_values.0.key"][2]
    known = {batch: "batch", new: "sequence", past: "past", whole: "past + sequence"}
    names = {str(dimension.value): name for dimension, name in known.items()}
    for value in _values(graph):
        if value.shape is not None:
            renamed = [names.get(str(getattr(one, "value", one)), one) for one in value.shape]
            value.shape = ir.Shape([getattr(one, "value", one) for one in renamed])


def _name_weights(graph: Any, parameters: Mapping[str, Tensor]) -> None:
    known: dict[str, str] = {}
    for name, parameter in parameters.items():
        plain = name.removeprefix(PREFIX)
        array = parameter.detach().numpy()
        known.setdefault(_content(array), plain)
        if array.ndim == 2:
            known.setdefault(_content(array.T), plain + TRANSPOSED)
    for value in list(graph.initializers.values()):
        array = value.const_value.numpy()
        if array.ndim and array.dtype == np.float32:
            name = known.get(_content(array), value.name)
            if name not in graph.initializers:
                value.name = name


def _tie(graph: Any) -> None:
    ir = import_module("onnx_ir")
    for name, value in list(graph.initializers.items()):
        source = graph.initializers.get(name.removesuffix(TRANSPOSED))
        if not name.endswith(TRANSPOSED) or source is None:
            continue
        node = ir.node("Transpose", [source], {"perm": [1, 0]}, name="transpose_output_weights")
        node.outputs[0].name, node.outputs[0].shape, node.outputs[0].dtype = name + TIED, value.shape, value.dtype
        value.replace_all_uses_with(node.outputs[0])
        graph.initializers.pop(name)
        graph.insert_before(graph[0], node)


def _values(graph: Any) -> Iterator[Any]:
    """Every value of the graph."""
    outputs = (value for node in graph.all_nodes() for value in node.outputs)
    return chain(graph.inputs, graph.initializers.values(), outputs)


def _content(array: AnyArray) -> str:
    """A digest of an array's shape and content."""
    return f"{array.shape} {hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()}"
