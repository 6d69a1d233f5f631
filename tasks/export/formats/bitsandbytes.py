"""Weights of 8 or 4 bits by bitsandbytes, for transformers.

LLM.int8 (Dettmers et al. 2022) and NF4 (Dettmers et al. 2023). Embeddings and the output layer stay as they are, as in
every checkpoint of that kind. What 4-bit weights are multiplied in is said in the config and is for the GPU of whoever
loads it; the proof computes in float32.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from models.pretrained import load_config
from storage.shards.arrays import Float32
from tasks.export.formats.format import Format
from tasks.export.formats.source import Source
from tasks.export.formats.tokenizer import write_tokenizer
from tasks.export.tolerance import EIGHT_BIT_ACTIVATIONS, FOUR_BIT, Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime


@dataclass(frozen=True)
class Bitsandbytes(Format):
    """A bitsandbytes checkpoint of so many bits a weight, with its tokenizer."""

    bits: Literal[8, 4]
    usual: bool = True

    @property
    def tolerance(self) -> Tolerance:
        return EIGHT_BIT_ACTIVATIONS if self.bits == 8 else FOUR_BIT

    @property
    def chat_rank(self) -> int:
        return 13 - self.bits

    @property
    def loading(self) -> str:
        return f'`AutoModelForCausalLM.from_pretrained("int{self.bits}")` with bitsandbytes and accelerate'

    def path(self, release: Path) -> Path:
        return release / f"int{self.bits}"

    def check(self, model: Path) -> None:
        """It holds any."""

    def write(self, source: Source, release: Path) -> None:
        import torch
        from transformers import BitsAndBytesConfig

        from models.runtimes.transformers import load_model

        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it reports each cast of an activation
        settings: dict[str, Any] = {"load_in_8bit": True} if self.bits == 8 else {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_compute_dtype": getattr(torch, source.compute),
        }  # fmt: skip
        load_model(source.folder, quantization_config=BitsAndBytesConfig(**settings)).save_pretrained(
            self.path(release)
        )
        write_tokenizer(source.folder, self.path(release))

    def open(self, release: Path, threads: int, device: str = "cpu") -> ModelRuntime:
        from models.runtimes.transformers import TransformersRuntime

        return TransformersRuntime(self.path(release), device, config=_in_float32(self.path(release)))

    def weights(self, model: Path, release: Path) -> Iterator[tuple[str, Float32]]:
        from models.runtimes.transformers import load_model

        opened: Any = load_model(self.path(release), config=_in_float32(self.path(release)))
        for name, value in opened.dequantize().state_dict().items():
            yield name, value.float().numpy()


def _in_float32(folder: Path) -> Any:
    """The config of a quantized folder, to compute in float32 here: what it says is for its users' GPUs, and many CPUs
    multiply bfloat16 a hundred times more slowly."""
    config = load_config(folder)
    if "bnb_4bit_compute_dtype" in config.quantization_config:
        config.quantization_config["bnb_4bit_compute_dtype"] = "float32"
    return config
