"""The precision of a run, and its requirements of device and engine.

Weights and optimizer states stay in float32 unless an engine says otherwise. The precision is that of the matrix
products. float16 needs dynamic loss scaling (Micikevicius et al. 2018), float8 a GPU that supports it and torchao.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import nn

from models.transformer import Head
from storage.errors import ConfigError
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World

DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8": torch.bfloat16,  # of all that torchao does not convert
}
FLOAT8_CAPABILITY = (8, 9)  # Ada and Hopper


def precision(spec: TrainSpec, world: World) -> str:
    """The profile's precision. auto is bfloat16 on a GPU that supports it, else float32.

    Raises ConfigError for a precision that this device does not support.
    """
    name, cuda = spec.config.precision, world.device.type == "cuda"
    if name == "auto":
        return "bfloat16" if cuda and has_bfloat16() else "float32"
    if name == "tf32" and not cuda:
        raise ConfigError("pretrain.precision tf32 needs a GPU.", "Choose float32 on a CPU.")
    if name == "float8":
        if not cuda or torch.cuda.get_device_capability(world.device) < FLOAT8_CAPABILITY:
            raise ConfigError(
                "pretrain.precision float8 needs a GPU of compute capability 8.9 or later.",
                "Train on an Ada, Hopper or Blackwell GPU, or choose bfloat16.",
            )
        if importlib.util.find_spec("torchao") is None:
            raise ConfigError(
                "pretrain.precision float8 needs torchao.",
                "Install the extra: pip install 'gristmill[float8]', or choose bfloat16.",
            )
    return name


def has_bfloat16() -> bool:
    """Whether this GPU supports bfloat16 in hardware. Older ones emulate it, more slowly than float32."""
    return torch.cuda.is_bf16_supported(including_emulation=False)


def prepare(model: nn.Module, name: str) -> None:
    """Switch matrix products to TF32, or convert the blocks' linear layers to float8 (dynamic scales per tensor) in
    place. Names and weights stay as they are."""
    if name == "tf32":
        torch.set_float32_matmul_precision("high")
    if name == "float8":
        float8 = importlib.import_module("torchao.float8")
        float8.convert_to_float8_training(model, module_filter_fn=lambda module, _: _fits_float8(module))


def _fits_float8(module: nn.Module) -> bool:
    """Whether a module is a linear layer that float8 kernels support by its sizes. The head, which computes the loss,
    is left out."""
    if not isinstance(module, nn.Linear) or isinstance(module, Head):
        return False
    return module.in_features % 16 == 0 and module.out_features % 16 == 0
