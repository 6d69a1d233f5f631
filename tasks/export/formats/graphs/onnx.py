"""ONNX, the graph that onnxruntime, onnxruntime-genai and transformers.js run: one step with its cache.

torch's exporter makes it from the traced step. Then it is tidied: dimensions and weights get their usual names, and
traces of this machine are removed. Matrix products hold their weights transposed, and the names of these end in
`.transposed`. Output weights tied to the embeddings are stored once: the graph transposes them, which onnxruntime then
does when it opens the file.

In int8, each 32 weights of a row have their own scale (onnxruntime's MatMulNBits), and activations are quantized
dynamically in the same blocks. onnxruntime's dynamic quantization, with one scale for all activations, won't do:
with it SmolLM2-135M is 0.6 nats from the checkpoint. Embeddings stay in float32, and so does a tied output layer.

A Protobuf message must be smaller than 2 GiB. Weights that come near that are in a file next to the graph, which names
it, so that a runtime opens both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from models.runtimes.kv_cache import GRAPH
from storage.errors import ConfigError
from storage.shards.arrays import Float32
from tasks.export.formats.format import missing
from tasks.export.formats.graphs.graph import GraphFormat, copy_companions
from tasks.export.formats.graphs.matrices import TIED
from tasks.export.formats.source import Source
from tasks.export.tolerance import EIGHT_BIT, FLOAT_GRAPH, Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime

OPSET = 18
BLOCK = 32  # weights per scale
EIGHT_BIT_ACTIVATIONS = 4  # MatMulNBits' accuracy_level
LARGEST = 1_500_000_000  # bytes of weights in the graph's own file, the limit of torch's exporter too
DATA_FILE = f"{GRAPH}.data"  # for more weights, as torch's exporter names it


@dataclass(frozen=True)
class Onnx(GraphFormat):
    """The graph with weights in float32 or int8."""

    kind: Literal["float32", "int8"]
    largest: int = LARGEST

    @property
    def folder(self) -> str:
        return "onnx" if self.kind == "float32" else "onnx-int8"

    @property
    def tolerance(self) -> Tolerance:
        return FLOAT_GRAPH if self.kind == "float32" else EIGHT_BIT

    @property
    def chat_rank(self) -> int:
        return 6 if self.kind == "float32" else 7

    @property
    def loading(self) -> str:
        return f'`onnxruntime.InferenceSession("{self.folder}/{GRAPH}")`, ids by the tokenizer beside it'

    def needs(self) -> str | None:
        return missing("onnx", "onnxscript", "onnxruntime")

    def check(self, model: Path) -> None:
        from models.pretrained import load_config

        super().check(model)
        if self.kind == "int8" and load_config(model).model_type == "gpt2":
            raise ConfigError(
                "onnxruntime can't quantize matrix products that add a bias, as GPT-2's do.",
                "Leave onnx-int8 out of export.formats.",
            )

    def write(self, source: Source, release: Path) -> None:
        self.check(source.folder)
        folder = self.path(release)
        copy_companions(source.folder, folder)
        if self.kind == "float32":
            write_graph(source.folder, folder / GRAPH, self.largest)
            return
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            write_graph(source.folder, Path(draft) / GRAPH, self.largest)
            quantize(Path(draft) / GRAPH, folder / GRAPH, self.largest)

    def open(self, release: Path, threads: int, device: str = "cpu") -> ModelRuntime:
        from models.runtimes.onnx import OnnxRuntime

        return OnnxRuntime(self.path(release), threads=threads)

    def weights(self, model: Path, release: Path) -> Iterator[tuple[str, Float32]]:
        from tasks.export.formats.graphs.matrices import matrices

        return matrices(self.path(release) / GRAPH)


def write_graph(model: Path, path: Path, largest: int) -> None:
    """Write the step of a folder's model in float32. Weights of more than `largest` bytes go into a file next to it."""
    import torch

    from models.pretrained import load_config
    from models.runtimes.kv_cache import past_shape, tensor_names
    from tasks.export.formats.graphs.decoder import trace
    from tasks.export.formats.graphs.tidy import tidy

    inputs, outputs = tensor_names(past_shape(load_config(model))[0])
    program = trace(model)
    exported: Any = torch.onnx.export(
        program, (), input_names=inputs, output_names=outputs, opset_version=OPSET, dynamo=True, verbose=False
    )
    size = tidy(exported.model, program.state_dict)
    import_module("onnx_ir").save(exported.model, path, external_data=DATA_FILE if size > largest else None)


def quantize(graph: Path, path: Path, largest: int) -> None:
    """Quantize a graph's matrix products with constant weights, and write it as `write_graph` does."""
    onnx: Any = import_module("onnx")
    blocks: Any = import_module("onnxruntime.quantization.matmul_nbits_quantizer")
    model = onnx.load(graph)
    chosen = blocks.DefaultWeightOnlyQuantConfig(
        block_size=BLOCK, is_symmetric=True, accuracy_level=EIGHT_BIT_ACTIVATIONS, bits=8
    )
    tied = [node.name for node in model.graph.node if any(name.endswith(TIED) for name in node.input)]
    quantizer = blocks.MatMulNBitsQuantizer(model, algo_config=chosen, nodes_to_exclude=tied)
    quantizer.process()
    size = sum(len(one.raw_data) for one in quantizer.model.graph().initializer)
    quantizer.model.save_model_to_file(str(path), size > largest)
