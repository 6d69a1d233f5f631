"""ONNX, the graph that onnxruntime, onnxruntime-genai and transformers.js run: one step with its cache.

It is made by torch's exporter from the traced step, then tidied: dimensions and weights get the names that they have
elsewhere, and what tells of this machine is left out. Matrix products hold their weights transposed, which
`.transposed` at the end of a name says. Output weights that are the embeddings are stored once: the graph transposes
them, as onnxruntime then does when it opens the file.

In int8 each 32 weights of a row have a scale of their own (onnxruntime's MatMulNBits), and activations are quantized
by the same blocks as they come. Its dynamic quantization, one scale for all activations, is no choice: SmolLM2-135M is
0.6 nats from the checkpoint with it. Embeddings stay in float32, and so does an output layer that is the embeddings.

Protobuf holds no message of 2 GiB. Weights that come near that lie in a file beside the graph, which names it and is
opened with it by whoever opens the graph.
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
from tasks.export.formats.graphs.graph import GraphFormat, copy_beside
from tasks.export.formats.graphs.names import TIED
from tasks.export.formats.packages import missing
from tasks.export.formats.source import Source
from tasks.export.tolerance import EIGHT_BIT, FLOAT_GRAPH, Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime

OPSET = 18
BLOCK = 32  # weights to a scale
EIGHT_BIT_ACTIVATIONS = 4  # MatMulNBits' accuracy_level
LARGEST = 1_500_000_000  # bytes of weights in the graph's own file; torch's exporter draws the line there too
BESIDE = f"{GRAPH}.data"  # the file of more, by the name that torch's exporter gives it


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
                "onnxruntime quantizes products by blocks where no bias is added in them, as GPT-2 does.",
                "Leave onnx-int8 out of export.formats.",
            )

    def write(self, source: Source, release: Path) -> None:
        self.check(source.folder)
        folder = self.path(release)
        copy_beside(source.folder, folder)
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
    """Write the step of a model folder in float32, weights of more bytes than `largest` beside it."""
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
    import_module("onnx_ir").save(exported.model, path, external_data=BESIDE if size > largest else None)


def quantize(graph: Path, path: Path, largest: int) -> None:
    """Quantize the matrix products of a graph whose weights are constant; it is written as the other is."""
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
