"""Linear layers on a CPU whose weights lie in oneDNN's own order, with what follows them computed in the same pass.

A product of 16 to 1,024 rows takes 0.6 to 0.9 of the time of torch's own, which puts the weights into an order of that
kind in each call (benchmarks/RESULTS.md). Only inference in float32: the weights are no parameters any more.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

ROWS = 256  # of a typical product, for which oneDNN chooses the order
_PLAIN, _JOINED = torch.ops.mkldnn._linear_pointwise, torch.ops.mkldnn._linear_pointwise.binary


class PackedLinear(nn.Module):
    """A linear layer."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor, activation: Literal["none", "swish"] = "none") -> Tensor:
        """The product, through an activation."""
        y: Tensor = _PLAIN(x, self.packed, self.bias, activation, [], "")
        return y

    def joined(self, x: Tensor, other: Tensor, by: Literal["add", "mul"]) -> Tensor:
        """The product, plus or times `other` of its shape."""
        y: Tensor = _JOINED(x, other, self.packed, self.bias, by)
        return y


def can_pack(parameter: Tensor) -> bool:
    """Whether layers with such weights can be packed here."""
    return torch.backends.mkldnn.is_available() and parameter.device.type == "cpu" and parameter.dtype == torch.float32


def pack(model: nn.Module) -> None:
    """Replace each linear layer of a model. The memory of its weights is freed at once, unless they are tied."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child))
