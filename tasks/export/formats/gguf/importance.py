"""The importance matrix: how large the inputs of each layer are on real text, by column.

Like llama.cpp's `imatrix`, it is the mean square of every input of a linear layer. Here it is measured with
transformers on held-out tokens other than those of the proof.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.shards.arrays import Float32
from tasks.export.formats.source import Source

if TYPE_CHECKING:
    from torch import Tensor


@functools.lru_cache(maxsize=1)  # shared by the kinds of one release, which are written one after the other
def importance(source: Source) -> dict[str, Float32]:
    """Mean squares in float32, by the name of a matrix in the checkpoint. Empty without text to measure on."""
    if not source.calibration:
        return {}
    import torch
    from transformers.pytorch_utils import Conv1D

    from models.pretrained import open_pretrained

    model = open_pretrained(source.folder, source.device)
    sums: dict[str, Tensor] = {}

    def add(name: str, _module: Any, inputs: tuple[Tensor, ...]) -> None:
        squares = inputs[0].detach().double().square().flatten(0, -2).sum(0)
        sums[name] = sums[name] + squares if name in sums else squares

    hooks = [
        module.register_forward_pre_hook(functools.partial(add, f"{name}.weight"))
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D))
    ]
    with torch.no_grad():
        for window in source.calibration:
            model(torch.tensor([window], device=source.device), use_cache=False)
    for hook in hooks:
        hook.remove()
    tokens = sum(map(len, source.calibration))
    return {name: _never_zero((total / tokens).cpu().numpy()) for name, total in sums.items()}


def _never_zero(squares: Any) -> Float32:
    """Raises zeros to a small value, so that a column that no text reached still counts."""
    least = squares.max() * 1e-8 or 1.0
    return np.maximum(squares, least).astype(np.float32)
