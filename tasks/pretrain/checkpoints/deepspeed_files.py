"""DeepSpeed's files, which are pickles, loaded without running what they may hold.

torch's restricted unpickler lets in tensors, numbers, containers and the four harmless classes that DeepSpeed keeps
beside them. DeepSpeed itself asks torch for the unrestricted one; torch's own switch overrules that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

SWITCH = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # whatever torch.load is called with


@contextmanager
def states_only() -> Iterator[None]:
    """Whatever loads DeepSpeed's files inside, DeepSpeed included, gets nothing but states from them.

    Loading anything else raises pickle.UnpicklingError.
    """
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "1"
    try:
        with torch.serialization.safe_globals([DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]):
            yield
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


def load_states(path: Path, *, mmap: bool = False) -> Any:
    """What a file holds, on the CPU; with `mmap` tensors are read only where they are looked at."""
    with states_only():
        return torch.load(path, map_location="cpu", mmap=mmap, weights_only=True)
