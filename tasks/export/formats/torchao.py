"""Weights of 8 bits by torchao, for transformers: a scale for each row of a matrix, activations as they are.

The file is safetensors with torchao's tensors split into their parts. Embeddings and the output layer stay as they are,
as in transformers' other checkpoints of this kind. torchao's 4-bit layouts can't be written: those for the CPU don't
support safetensors, and the others need `mslk`, which hasn't been released for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import ConfigError
from storage.shards.arrays import Float32
from tasks.export.formats.config import rewrite_config
from tasks.export.formats.format import Format, missing
from tasks.export.formats.source import Source
from tasks.export.formats.tokenizer import write_tokenizer
from tasks.export.tolerance import EIGHT_BIT, Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime

_LENGTH = 8  # bytes before a safetensors header: its length as a little-endian number
_METADATA = "__metadata__"


@dataclass(frozen=True)
class TorchAo(Format):
    """A torchao checkpoint of 8 bits per weight, with its tokenizer."""

    tolerance: Tolerance = EIGHT_BIT
    usual: bool = False
    chat_rank: int = 8
    loading: str = '`AutoModelForCausalLM.from_pretrained("torchao-int8")` with torchao'

    def needs(self) -> str | None:
        return missing("torchao")

    def path(self, release: Path) -> Path:
        return release / "torchao-int8"

    def check(self, model: Path) -> None:
        from models.pretrained import load_config
        from tasks.export.formats.weights import require_linear

        require_linear(model, "torchao-int8")
        if load_config(model).model_type == "gpt2":
            raise ConfigError(
                "torchao quantizes linear layers, and transformers builds GPT-2 from transposed ones instead.",
                "Leave torchao-int8 out of export.formats.",
            )

    def write(self, source: Source, release: Path) -> None:
        from transformers import TorchAoConfig

        from models.runtimes.transformers import load_model

        self.check(source.folder)
        eight_bits: Any = import_module("torchao.quantization").Int8WeightOnlyConfig()
        load_model(source.folder, quantization_config=TorchAoConfig(eight_bits)).save_pretrained(self.path(release))
        rewrite_config(self.path(release))
        for file in sorted(self.path(release).glob("*.safetensors")):
            _sort_metadata(file)
        write_tokenizer(source.folder, self.path(release))

    def open(self, release: Path, threads: int, device: str = "cpu") -> ModelRuntime:
        from models.runtimes.protocol import RuntimeFault
        from models.runtimes.transformers import TransformersRuntime

        if lacking := self.needs():
            raise RuntimeFault(lacking.rstrip("."))
        return TransformersRuntime(self.path(release), device)

    def weights(self, model: Path, release: Path) -> Iterator[tuple[str, Float32]]:
        from models.runtimes.transformers import load_model

        opened: Any = load_model(self.path(release))
        for name, value in opened.state_dict().items():
            whole = value.dequantize() if hasattr(value, "qdata") else value
            if whole.ndim == 2:
                yield name, whole.detach().numpy().astype(np.float32, copy=False)


def _sort_metadata(file: Path) -> None:
    """Sort a safetensors file's metadata by name, in place, as the library writes it in random order. The header keeps
    its length, and no tensor moves."""
    with file.open("r+b") as opened:
        length = int.from_bytes(opened.read(_LENGTH), "little")
        header = json.loads(opened.read(length))
        header[_METADATA] = dict(sorted(header.get(_METADATA, {}).items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) > length:
            raise ValueError(f"the header of {file} was not written as compactly as it can be")
        opened.seek(_LENGTH)
        opened.write(text.ljust(length))
