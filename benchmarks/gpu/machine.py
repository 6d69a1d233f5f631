"""The first row: device and software, and whether anything can be compiled here."""

from __future__ import annotations

import platform
from typing import Any


def measure(device: str) -> dict[str, Any]:
    """`gpu` is the name of the GPU, None where torch sees none or is not to use it."""
    import torch

    from models.kernels import row_kernels

    gpu = torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else None
    name = f"CPU ({platform.machine()}), {torch.get_num_threads()} threads"
    return {
        "gpu": gpu,
        "compiles": gpu is None or row_kernels.compiled("cuda") is not row_kernels.PLAIN,
        "row": {
            "device": name if gpu is None else f"{gpu}, CUDA {torch.version.cuda}",
            "torch": torch.__version__,
            "Python": platform.python_version(),
        },
    }
