"""Weights of 8 or 4 bits by bitsandbytes, for transformers.

LLM.int8 (Dettmers et al. 2022) and NF4 (Dettmers et al. 2023). Embeddings and the output layer stay as they are, as in
every such checkpoint. The config names the dtype in which a user's GPU multiplies 4-bit weights. The proof computes in
float32.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from models.pretrained import load_config
from storage.shards.arrays import Float32
from tasks.export.formats.config import rewrite_config
from tasks.export.formats.format import Format
from tasks.export.formats.source import Source
from tasks.export.formats.tokenizer import write_tokenizer
from tasks.export.tolerance import EIGHT_BIT_ACTIVATIONS, FOUR_BIT, Tolerance

if TYPE_CHECKING:
    from models.runtimes.protocol import ModelRuntime

BLOCK = 64  # weights of 4 bits per scale, row by row without a gap
PACKED_ROWS = 32  # rows that bitsandbytes packs together on CPUs with AVX512-BF16


@dataclass(frozen=True)
class Bitsandbytes(Format):
    """A bitsandbytes checkpoint of `bits` bits per weight, with its tokenizer."""

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
        from tasks.export.formats.weights import require_linear

        require_linear(model, f"int{self.bits}")

    def remark(self, model: Path) -> str | None:
        if self.bits == 8:
            return None
        shapes = sorted({shape for shape in _layers_of(model) if not _fits_cpu(*shape)})
        if not shapes:
            return None
        width = next((width for _, width in shapes if width % BLOCK), None)
        what = (
            f"the width {width:,} isn't a multiple of {BLOCK}"
            if width
            else (f"{shapes[0][0]:,} rows aren't a multiple of {PACKED_ROWS}")
        )
        where = "CPUs" if width else "CPUs with AVX512-BF16"
        return f"for GPUs: bitsandbytes computes it wrongly or not at all on {where}, as {what}"

    def write(self, source: Source, release: Path) -> None:
        import torch
        from transformers import BitsAndBytesConfig

        from models.runtimes.transformers import load_model

        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it reports each cast of an activation
        settings: dict[str, Any] = (
            {"load_in_8bit": True}
            if self.bits == 8
            else {
                "load_in_4bit": True,
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_compute_dtype": getattr(torch, source.compute),
            }
        )
        load_model(source.folder, quantization_config=BitsAndBytesConfig(**settings)).save_pretrained(
            self.path(release)
        )
        rewrite_config(self.path(release))
        write_tokenizer(source.folder, self.path(release))

    def open(self, release: Path, threads: int, device: str = "cpu") -> ModelRuntime:
        from models.runtimes.transformers import TransformersRuntime

        runtime = TransformersRuntime(self.path(release), device, config=_in_float32(self.path(release)))
        if self.bits == 4 and runtime.model.device.type == "cpu":
            _make_plain(runtime.model, every=False)
        return runtime

    def weights(self, model: Path, release: Path) -> Iterator[tuple[str, Float32]]:
        from models.runtimes.transformers import load_model

        opened: Any = load_model(self.path(release), config=_in_float32(self.path(release)))
        transposed = _transposed(opened)
        if self.bits == 4:
            _make_plain(opened, every=True)
        else:
            opened.dequantize()
        for name, value in opened.state_dict().items():
            values: Float32 = value.float().numpy()
            yield name, np.ascontiguousarray(values.T) if name in transposed else values


def _transposed(opened: Any) -> frozenset[str]:
    """The matrices that the checkpoint stores as inputs × outputs (GPT-2's Conv1D), and bitsandbytes the other way."""
    from transformers.pytorch_utils import Conv1D

    modules = opened.named_modules()
    return frozenset(f"{name}.weight" for name, module in modules if getattr(module, "source_cls", None) is Conv1D)


def _layers_of(model: Path) -> Iterator[tuple[int, int]]:
    """(rows, width) of the layers that are rounded."""
    from torch.nn import Linear
    from transformers.pytorch_utils import Conv1D

    from models.pretrained import empty_model

    empty = empty_model(model)
    for module in empty.modules():
        if module is empty.get_output_embeddings():
            continue
        if isinstance(module, Linear):
            yield module.out_features, module.in_features
        elif isinstance(module, Conv1D):
            yield int(module.weight.shape[1]), int(module.weight.shape[0])


def _fits_cpu(rows: int, width: int) -> bool:
    """Whether bitsandbytes multiplies correctly by a 4-bit layer on every CPU. It assumes that no block of weights
    spans two rows, and on CPUs with AVX512-BF16 it packs 32 rows together."""
    return width % BLOCK == 0 and rows % PACKED_ROWS == 0


def _make_plain(opened: Any, every: bool) -> None:
    """Replace 4-bit layers by plain ones: every one, or only those that some CPU can't multiply by."""
    import torch
    from bitsandbytes.nn import Linear4bit  # type: ignore[attr-defined]

    for name, layer in list(opened.named_modules()):
        if isinstance(layer, Linear4bit) and (every or not _fits_cpu(layer.out_features, layer.in_features)):
            with torch.device("meta"):
                plain = torch.nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
            plain.weight = torch.nn.Parameter(_dequantized(layer.weight), requires_grad=False)
            plain.bias = layer.bias
            opened.set_submodule(name, plain)


def _dequantized(weight: Any) -> Any:
    """A 4-bit matrix, dequantized as one row of blocks, which is how it was rounded, and then reshaped."""
    import torch
    from bitsandbytes.functional import dequantize_4bit

    state = copy.copy(weight.quant_state)
    shape, state.shape = state.shape, torch.Size([math.prod(state.shape)])
    return dequantize_4bit(weight.data.reshape(-1, 1), state).reshape(shape)


def _in_float32(folder: Path) -> Any:
    """The config of a quantized folder, changed to compute in float32. Its dtype is meant for users' GPUs, and many
    CPUs multiply bfloat16 a hundred times more slowly."""
    config = load_config(folder)
    if "bnb_4bit_compute_dtype" in config.quantization_config:
        config.quantization_config["bnb_4bit_compute_dtype"] = "float32"
    return config
