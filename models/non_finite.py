"""Weights that are no numbers: a model with one of them computes nothing, and every format would say so otherwise."""

from __future__ import annotations

from pathlib import Path

from models.pretrained import weight_files


def not_finite(folder: Path) -> str | None:
    """The first weight of a model folder that is NaN or infinite, as half a sentence; None where all are numbers.

    All weights are read once, a tensor in memory at a time.
    """
    import torch
    from safetensors import safe_open

    for file in weight_files(folder):
        with safe_open(file, framework="pt") as opened:
            for name in sorted(opened.keys()):
                tensor = opened.get_tensor(name)
                if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                    return f"{name} has {'NaN' if torch.isnan(tensor).any() else 'infinite numbers'}"
    return None
