"""What follows from a step's number alone: its learning rate, and how far a warmup by doubling has come.

Pure functions, so that there is nothing to store and nothing to restore.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the config asks this module how long a warmup lasts; it is a name here, no more
    from tasks.pretrain.config import PretrainConfig


def learning_rate(config: PretrainConfig, step: int, steps: int) -> float:
    """The rate of `step` (from 1 to `steps`): a linear warmup to the peak, then down to `final_share` of it.

    cosine    one half-wave (Loshchilov & Hutter 2016, one cycle), with the floor of Hoffmann et al. 2022
    linear    a straight line (Bergsma et al. 2025 find it best where it ends at 0)
    wsd       warmup, stable, decay (Hu et al. 2024, MiniCPM): at the peak until the last `decay_share` of the steps
    constant  at the peak for good
    """
    peak, floor, begun = config.learning_rate, config.final_share, config.warmup_steps
    if step <= begun:
        return peak * step / begun
    if config.schedule == "wsd":
        begun = steps - decay_steps(config.decay_share, steps)
    if config.schedule == "constant" or step <= begun:
        return peak
    return peak * (floor + (1 - floor) * _height(config, (step - begun) / max(1, steps - begun)))


def _height(config: PretrainConfig, progress: float) -> float:
    """How much of the way down is still ahead, from 1 to 0."""
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    if config.schedule == "wsd" and config.decay_shape == "1-sqrt":
        return 1 - math.sqrt(progress)  # Hägele et al. 2024, equation 2
    return 1 - progress


def decay_steps(share: float, steps: int) -> int:
    """Steps of the decay of wsd: the share, rounded, and at least one."""
    return max(1, round(share * steps))


def parts_at(step: int, *, warmup_steps: int, parts: int) -> int:
    """`parts` (a power of 2) at step 1, halved in equal intervals of the warmup, 1 after it."""
    if step > warmup_steps:
        return 1
    intervals = parts.bit_length() - 1
    return parts >> ((step - 1) * intervals // warmup_steps)


def wholes_until(steps: int, whole: int, *, warmup_steps: int, parts: int) -> int:
    """The sum of `whole` divided by `parts_at` over steps 1 to `steps`; `parts` divides `whole`."""
    intervals = parts.bit_length() - 1
    total = whole * max(0, steps - warmup_steps)
    for interval in range(intervals):
        first, last = (-(-(number * warmup_steps) // intervals) for number in (interval, interval + 1))
        total += (whole // parts << interval) * (min(steps, last) - min(steps, first))
    return total
