"""The effect of torch's autocast on a tensor."""

from __future__ import annotations

import torch
from torch import Tensor


def multiplied_in(x: Tensor) -> torch.dtype:
    """The dtype that matrix products and attention use for `x`."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
