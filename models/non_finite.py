"""Finds NaN and infinite weights, before an export fails on them in its own way in each format."""

from __future__ import annotations

from pathlib import Path

from models.pretrained import weight_files


def not_finite(folder: Path) -> str | None:
    """The first NaN or infinite weight of a model folder, as part of a sentence. None if all are finite.

    All weights are read once, one tensor in memory at a time.
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
