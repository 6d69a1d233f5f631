"""A frozen model in 4 bits below its adapter (QLoRA, Dettmers et al. 2023): an eighth of its memory in float32.

The adapter is trained over the rounded weights. So it is merged into these, in float32, and not into the weights that
they were rounded from.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from models.pretrained import load_pretrained

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_nf4(folder: Path, *, cuda: bool, bfloat16: bool) -> PreTrainedModel:
    """The model of a folder with its linear layers, except the head, in NF4 with double quantization. Matrix products
    are in bfloat16 or float32."""
    from bitsandbytes.nn.modules import Linear4bit
    from transformers import BitsAndBytesConfig

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it reports each cast of an activation
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16 if bfloat16 else torch.float32,
    )
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if cuda else "cpu"
    model = load_pretrained(folder, quantization_config=settings, device_map={"": device})
    for module in model.modules():
        if isinstance(module, Linear4bit):
            # On some CPUs bitsandbytes would validate in bfloat16, and leave the weights in another order
            module.support_avx512bf16_for_cpu = False
    return model


def train_in_float32(model: nn.Module) -> None:
    """Convert the adapter to float32, as over a model that isn't quantized. TRL makes it bfloat16, which rounds
    the copies of parts that are trained whole: they begin as the originals again."""
    from peft.utils import ModulesToSaveWrapper

    for value in model.parameters():
        if value.requires_grad:
            value.data = value.data.float()
    for module in model.modules():
        if isinstance(module, ModulesToSaveWrapper):
            module.modules_to_save["default"].load_state_dict(module.original_module.state_dict())


def as_rounded(folder: Path, trained: nn.Module) -> PreTrainedModel:
    """The model of a folder in float32, with the dequantized weights of the layers that `trained` has in 4 bits."""
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn.modules import Linear4bit
    from transformers.pytorch_utils import Conv1D

    model = load_pretrained(folder)
    for name, module in trained.named_modules():
        if isinstance(module, Linear4bit):
            packed: Any = module.weight
            weight = dequantize_4bit(packed.data, packed.quant_state).to("cpu", torch.float32)
            layer = model.get_submodule(name.removesuffix(".base_layer"))
            layer.weight.data = (weight.T if isinstance(layer, Conv1D) else weight).contiguous()
    return model
