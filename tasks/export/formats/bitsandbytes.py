"""Weights of 8 or 4 bits by bitsandbytes, for transformers.

LLM.int8 (Dettmers et al. 2022) and NF4 (Dettmers et al. 2023). Embeddings and the output layer stay as they are, as in
every checkpoint of that kind.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from models.tokenizer import copy_tokenizer
from tasks.export.formats.format import Format
from tasks.export.tolerance import EIGHT_BIT, FOUR_BIT, Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime


@dataclass(frozen=True)
class Bitsandbytes(Format):
    """A bitsandbytes checkpoint of so many bits a weight, with its tokenizer."""

    bits: Literal[8, 4]
    usual: bool = True

    @property
    def tolerance(self) -> Tolerance:
        return EIGHT_BIT if self.bits == 8 else FOUR_BIT

    @property
    def chat_rank(self) -> int:
        return 13 - self.bits

    @property
    def loading(self) -> str:
        return f'`AutoModelForCausalLM.from_pretrained("int{self.bits}")` with bitsandbytes'

    def path(self, release: Path) -> Path:
        return release / f"int{self.bits}"

    def check(self, model: Path) -> None:
        """It holds any."""

    def write(self, model: Path, release: Path) -> None:
        import torch
        from transformers import BitsAndBytesConfig

        from models.runtimes.transformers import load_model

        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it reports each cast of an activation
        settings: dict[str, Any] = {"load_in_8bit": True} if self.bits == 8 else {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_compute_dtype": torch.float32,
        }  # fmt: skip
        load_model(model, quantization_config=BitsAndBytesConfig(**settings)).save_pretrained(self.path(release))
        copy_tokenizer(model, self.path(release))

    def open(self, release: Path, threads: int) -> ModelRuntime:
        from models.runtimes.transformers import TransformersRuntime

        return TransformersRuntime(self.path(release))
