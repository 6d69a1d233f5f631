"""The learning rate as a pure function of the step: nothing to store, nothing to restore."""

from __future__ import annotations

import math


def learning_rate(step: int, *, steps: int, peak: float, warmup_steps: int, final_share: float) -> float:
    """The rate of `step` (from 1 to `steps`): linear warmup, then a cosine down to `final_share` of the peak.

    Loshchilov & Hutter 2016 (one cycle), with the floor of Hoffmann et al. 2022.
    """
    if step <= warmup_steps:
        return peak * step / warmup_steps
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return peak * (final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * progress)))
