"""Muon (Jordan et al. 2024): momentum whose matrices are made nearly orthogonal by Newton and Schulz's iteration.

torch's own Muon won't do, for three reasons. It iterates in bfloat16 everywhere, which takes 4 to 25 times as long as
float32 on a CPU without matrix units for it, and rounds differently on each kind of CPU. It takes one matrix at a time,
whereas here matrices of one shape go through the iteration together. And it makes a fused matrix (q, k and v, or gate
and up) orthogonal as one, with which the model learns less than with each part as a matrix of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic: steepest at 0 (Jordan et al. 2024)
ITERATIONS = 5
EPSILON = 1e-7
NUMBERS = 1 << 24  # of matrices that go through the iteration together, which takes several times their memory
RMS = 0.2  # of Adam's updates, to which Muon's are scaled (Liu et al. 2025, section 2.2)


class Muon(torch.optim.Optimizer):
    """Groups have `lr`, `momentum`, `weight_decay` (decoupled), and `parts`: for each parameter the number of rows of
    each matrix fused in it."""

    def __init__(self, groups: list[dict[str, object]], *, momentum: float) -> None:
        super().__init__(groups, {"lr": 0.0, "momentum": momentum, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float | Tensor] | None = None) -> None:  # type: ignore[override]
        """One step of all parameters that have a gradient."""
        for group in self.param_groups:
            alike: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)  # matrices and their updates
            for parameter, parts in zip(group["params"], group["parts"], strict=True):
                if parameter.grad is None:
                    continue
                update = self._nesterov(parameter, parameter.grad, group["momentum"])
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                for matrix, change in zip(parameter.split(parts), update.split(parts), strict=True):
                    alike[matrix.shape].append((matrix, change))
            for shape, pairs in alike.items():
                rate, together = group["lr"] * RMS * math.sqrt(max(shape)), max(1, NUMBERS // shape.numel())
                for start in range(0, len(pairs), together):
                    matrices, updates = zip(*pairs[start : start + together], strict=True)
                    for matrix, change in zip(matrices, orthogonal(torch.stack(updates)), strict=True):
                        matrix.add_(change, alpha=-rate)

    def _nesterov(self, parameter: Tensor, gradient: Tensor, momentum: float) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        average: Tensor = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        return gradient.lerp(average, momentum)


def orthogonal(matrices: Tensor) -> Tensor:
    """The approximate orthogonal factors (..., R, C) of matrices, with singular values between 0.7 and 1.2. Computed in
    bfloat16 on a GPU, in float32 on a CPU."""
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + EPSILON)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x  # the smaller of the two Gram matrices
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return (x.mT if tall else x).to(matrices.dtype)
