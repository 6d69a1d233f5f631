"""Muon (Jordan et al. 2024): momentum whose matrices are made nearly orthogonal by Newton and Schulz's iteration.

torch's own Muon won't do, for three reasons. It iterates in bfloat16 everywhere, which takes 4 to 25 times as long as
float32 on a CPU without matrix units for it, and rounds differently on each kind of CPU. It takes one matrix at a time,
whereas here matrices of one shape go through the iteration together. And it makes a fused matrix (q, k and v, or gate
and up) orthogonal as one, with which the model learns less than with each part as a matrix of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic: steepest at 0 (Jordan et al. 2024)
ITERATIONS = 5
EPSILON = 1e-7
NUMBERS = 1 << 24  # of matrices that go through the iteration together, which takes several times their memory
RMS = 0.2  # of Adam's updates, to which Muon's are scaled (Liu et al. 2025, section 2.2)


class Whole:
    """How a process holds matrices: here each of them whole. Engines that shard them have another way
    (`engines/owners.py`)."""

    ranks = 1  # processes that share the work

    def local(self, tensor: Tensor) -> Tensor:
        """What this process holds of a parameter, or of a gradient or state like it."""
        return tensor

    def matrices(self, parameter: Tensor, parts: Sequence[int]) -> Iterable[tuple[torch.Size, slice, Any]]:
        """For each matrix fused in a parameter its shape, the rows of `local` that belong to it, and what `orthogonal`
        must know of it. `parts` are the numbers of rows."""
        start = 0
        for rows in parts:
            yield torch.Size((rows, *parameter.shape[1:])), slice(start, start + rows), None
            start += rows

    def orthogonal(
        self, shape: torch.Size, held: Sequence[Tensor], places: Sequence[Any], before: int
    ) -> Iterable[Tensor]:
        """The orthogonal factors of matrices of one shape, as far as this process holds the matrices. `before` are
        those of the same step that had their turn."""
        return orthogonal(torch.stack(tuple(held)))


class Muon(torch.optim.Optimizer):
    """Groups have `lr`, `momentum`, `weight_decay` (decoupled), and `parts`: for each parameter the number of rows of
    each matrix fused in it. Of a parameter with three dimensions, such as the weights of experts, each row is a
    matrix."""

    def __init__(self, groups: list[dict[str, object]], *, momentum: float, layout: Whole | None = None) -> None:
        self.layout = layout or Whole()
        super().__init__(groups, {"lr": 0.0, "momentum": momentum, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float | Tensor] | None = None) -> None:  # type: ignore[override]
        """One step of all parameters that have a gradient. With shards every process must call it."""
        layout, before = self.layout, 0
        for group in self.param_groups:
            alike: dict[torch.Size, list[tuple[Tensor, Tensor, Any]]] = defaultdict(list)  # matrices, updates, places
            for parameter, parts in zip(group["params"], group["parts"], strict=True):
                if parameter.grad is None:
                    continue
                update = self._nesterov(parameter, layout.local(parameter.grad), group["momentum"])
                held = layout.local(parameter)
                held.mul_(1 - group["lr"] * group["weight_decay"])
                for shape, rows, place in layout.matrices(parameter, parts):
                    alike[shape].append((held[rows], update[rows], place))
            for shape, found in alike.items():
                rate = group["lr"] * RMS * math.sqrt(max(shape))
                together = max(1, NUMBERS // shape.numel()) * layout.ranks
                for start in range(0, len(found), together):
                    matrices, updates, places = zip(*found[start : start + together], strict=True)
                    changes = layout.orthogonal(shape, updates, places, before)
                    for matrix, change in zip(matrices, changes, strict=True):
                        matrix.add_(change, alpha=-rate)
                    before += len(matrices)

    def _nesterov(self, parameter: Tensor, gradient: Tensor, momentum: float) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        average: Tensor = self.layout.local(state["momentum_buffer"]).lerp_(gradient, 1 - momentum)
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
