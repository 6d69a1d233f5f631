"""A graph of one step in onnxruntime, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from models.runtimes.kv_cache import GRAPH, Array, CachedRuntime, past_shape, tensor_names
from models.runtimes.protocol import RuntimeFault

SILENT = 4  # onnxruntime's severity of what it logs
_FAULTS = (  # onnxruntime's exceptions, which lack a common base
    "EPFail",
    "EngineError",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoaded",
    "NoModel",
    "NoSuchFile",
    "NotImplemented",
    "RuntimeException",
)


class OnnxRuntime(CachedRuntime):
    """The graph of a folder. Raises RuntimeFault for one that is missing, damaged, or has other inputs or outputs."""

    def __init__(self, folder: Path, *, threads: int = 1) -> None:
        super().__init__(folder)
        try:
            library: Any = import_module("onnxruntime")
        except ImportError as error:
            raise RuntimeFault("onnxruntime is not installed: pip install 'gristmill[export]'") from error
        state = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
        self.faults = (RuntimeError, ValueError, *(getattr(state, name) for name in _FAULTS if hasattr(state, name)))
        self.path = folder / GRAPH
        options = library.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = SILENT
        try:
            self.session = library.InferenceSession(str(self.path), options, providers=["CPUExecutionProvider"])
        except self.faults as error:
            raise RuntimeFault(f"onnxruntime can't load {self.path}: {error}") from error
        self.inputs, self.outputs = tensor_names(past_shape(self.config)[0])
        inputs, outputs = (
            {one.name for one in ends} for ends in (self.session.get_inputs(), self.session.get_outputs())
        )
        different = sorted((inputs ^ set(self.inputs)) | (outputs ^ set(self.outputs)))
        if different:
            raise RuntimeFault(f"{self.path} doesn't fit this model: {', '.join(different[:4])}")

    def step(self, inputs: Sequence[Array]) -> list[Array]:
        try:
            outputs: list[Array] = self.session.run(self.outputs, dict(zip(self.inputs, inputs, strict=True)))
        except self.faults as error:
            raise RuntimeFault(f"onnxruntime can't run {self.path}: {error}") from error
        return outputs

    def close(self) -> None:
        del self.session
