"""Formats that transformers loads without our code: plain safetensors, and bitsandbytes at 8 and 4 bits.

LLM.int8 (Dettmers et al. 2022) and NF4 (Dettmers et al. 2023). Embeddings and the output layer stay as they are, as
in every checkpoint of that kind.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from models.tokenizer import copy_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def write_safetensors(source: Path, folder: Path) -> None:
    """The checkpoint as it is, in float32: the master copy of the release."""
    shutil.copytree(source, folder)


def write_quantized(source: Path, folder: Path, *, bits: int) -> None:
    """A bitsandbytes checkpoint of 8 or 4 bits a weight, with its tokenizer."""
    from transformers import BitsAndBytesConfig

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it reports each cast of an activation
    settings: dict[str, Any] = {"load_in_8bit": True} if bits == 8 else {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_compute_dtype": torch.float32,
    }  # fmt: skip
    load_model(source, quantization_config=BitsAndBytesConfig(**settings)).save_pretrained(folder)
    copy_tokenizer(source, folder)


def load_model(folder: Path, **options: Any) -> PreTrainedModel:
    """A model as any user of transformers loads it: from the folder alone, without remote code."""
    from transformers import AutoModelForCausalLM

    # Quantized layers run on the CPU too, so that a release needs no GPU to be proved
    options = {"dtype": torch.float32, "device_map": "cpu", **options}
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False, **options
    )
    return model.eval()
