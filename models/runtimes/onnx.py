"""A graph of one step in onnxruntime, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from models.runtimes.cached import GRAPH, Array, CachedRuntime, past_shape, tensor_names
from models.runtimes.protocol import RuntimeFault

SILENT = 4  # onnxruntime's severity of what it logs
_FAULTS = (  # what onnxruntime raises; they have no base of their own
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
        given = {one.name for one in self.session.get_inputs()}, {one.name for one in self.session.get_outputs()}
        strange = sorted((given[0] ^ set(self.inputs)) | (given[1] ^ set(self.outputs)))
        if strange:
            raise RuntimeFault(f"{self.path} is no step of this model: {', '.join(strange[:4])}")

    def step(self, inputs: Sequence[Array]) -> list[Array]:
        try:
            found: list[Array] = self.session.run(self.outputs, dict(zip(self.inputs, inputs, strict=True)))
        except self.faults as error:
            raise RuntimeFault(f"onnxruntime can't run {self.path}: {error}") from error
        return found

    def close(self) -> None:
        del self.session
