"""The learning rate of a step: a pure function of its number, so nothing needs to be stored or restored."""

from __future__ import annotations

import math

from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.recipe.steps import decay_steps


def learning_rate(config: PretrainConfig, step: int, steps: int) -> float:
    """The rate of `step` (from 1 to `steps`): a linear warmup to the peak, then down to `final_share` of it.

    cosine    half a cosine (Loshchilov & Hutter 2016), with a floor as in Hoffmann et al. 2022
    linear    a straight line (best when it ends at 0, Bergsma et al. 2025)
    wsd       warmup, stable, decay (Hu et al. 2024, MiniCPM): at the peak until the last `decay_share` of the steps
    constant  at the peak until the end
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
    """The remaining share of the decay, from 1 to 0."""
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    if config.schedule == "wsd" and config.decay_shape == "1-sqrt":
        return 1 - math.sqrt(progress)  # Hägele et al. 2024, equation 2
    return 1 - progress
