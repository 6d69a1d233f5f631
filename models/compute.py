"""FLOPs of a run, their time and cost, and its ratio of tokens to parameters. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from models.devices import Device, Products
from models.presets import (
    CHINCHILLA_TOKENS_PER_PARAMETER,
    ForeignShape,
    Recompute,
    Shape,
    block_matrices,
    count_parameters,
    flops_per_token,
    router_parameters,
)


def executed_flops_per_token(shape: Shape, *, recompute: Recompute = "none", skips_hidden: bool = False) -> int:
    """Hardware FLOPs per token in training, of matrix products: `flops_per_token`, plus attention that a window hides
    unless the kernel `skips_hidden`, plus the second forward pass of full recomputation, which ends before each block's
    last product, unless a norm after it needs it.

    Hardware and model FLOPs are as in PaLM, appendix B. Selective recomputation doesn't repeat products. Of a foreign
    shape full recomputation repeats a forward pass.
    """
    if isinstance(shape, ForeignShape):
        return flops_per_token(shape) * (4 if recompute == "full" else 3) // 3
    seen, whole = shape.seen(), shape.depth * shape.context
    attended = seen if skips_hidden else whole
    again = 0
    if recompute == "full":
        products = block_matrices(shape, active=True) + router_parameters(shape)
        # The last product of a block, unless a norm after it or a router's weights need what it returns
        products -= 0 if shape.experts or shape.post_norms else shape.width * shape.feed_forward
        again = shape.depth * 2 * products + 4 * shape.heads_width * attended
    return flops_per_token(shape) + 12 * shape.heads_width * (attended - seen) + again


@dataclass(frozen=True)
class Bill:
    """The cost of a number of FLOPs. `hours` is wall time with all devices. None is unknown."""

    hours: float | None
    device_hours: float | None
    money: float | None  # USD


def bill(flops: float, device: Device, *, devices: float = 1, products: Products = "half") -> Bill:
    """Time and cost of `flops` on `devices` of a kind, at their assumed utilisation and price. A fraction means that a
    device is shared."""
    peak = device.peak(products)
    if peak is None:
        return Bill(None, None, None)
    device_hours = flops / (peak * device.utilisation) / 3600
    return Bill(device_hours / devices, device_hours, None if device.price is None else device_hours * device.price)


def compute_optimal(flops: float) -> tuple[float, float]:
    """Compute-optimal (parameters, tokens) for `flops` = 6ND, with D = 20 N (Hoffmann et al. 2022)."""
    parameters = math.sqrt(flops / (6 * CHINCHILLA_TOKENS_PER_PARAMETER))
    return parameters, CHINCHILLA_TOKENS_PER_PARAMETER * parameters


def judge_ratio(shape: Shape, tokens: int) -> str:
    """A comment on the ratio of tokens to parameters, with well-known models for comparison."""
    ratio = tokens / count_parameters(shape, active=True)
    if ratio < 10:
        return (
            "under-trained: for the same compute, a smaller model on more text would be better. GPT-3 had 1.7 "
            "(175B on 300B tokens), Chinchilla 20 (Hoffmann et al. 2022)"
        )
    if ratio < 40:
        return "compute-optimal, about the 20 of Chinchilla (70B on 1.4T tokens, Hoffmann et al. 2022)"
    if ratio < 3000:
        return (
            "over-trained, as models for inference are: more compute than optimal for this loss, but a smaller "
            "model to serve. LLaMA 7B had 149 (1T tokens), Llama 3 8B 1,870 (15T)"
        )
    return (
        "over-trained beyond Llama 3 8B's 1,870: expect little from more tokens. If the text is repeated, each epoch "
        "beyond four is worth less (Muennighoff et al. 2023)"
    )
