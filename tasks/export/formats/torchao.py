"""Weights of 8 bits by torchao, for transformers: a scale for each row of a matrix, activations as they are.

The file is safetensors, in which torchao's tensors lie as their parts. Embeddings and the output layer stay as they
are, as with transformers' other checkpoints of that kind. Of torchao's layouts of 4 bits none can be written: those for
the CPU have no safetensors, the others need `mslk`, of which there is no release for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import ConfigError
from storage.shards.arrays import Float32
from tasks.export.formats.config import rewrite_config
from tasks.export.formats.format import Format
from tasks.export.formats.metadata import sort_metadata
from tasks.export.formats.packages import missing
from tasks.export.formats.source import Source
from tasks.export.formats.tokenizer import write_tokenizer
from tasks.export.tolerance import EIGHT_BIT, Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime


@dataclass(frozen=True)
class TorchAo(Format):
    """A torchao checkpoint of 8 bits a weight, with its tokenizer."""

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

        if load_config(model).model_type == "gpt2":
            raise ConfigError(
                "torchao quantizes linear layers, of which GPT-2 has none: transformers gives it transposed ones.",
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
            sort_metadata(file)
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
