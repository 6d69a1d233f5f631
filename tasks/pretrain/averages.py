"""Averages of the weights over the steps of a training: an exponential one, and the mean of some steps at the end.

They are kept among the optimizer's states, beside Adam's moments. So each rank has those of its shards, checkpoints
hold them, and a resume restores them, by other processes too. What a step adds follows from its number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.pretrain.config import AVERAGES, EMA, MEAN, PretrainConfig
from tasks.pretrain.engines.shard_layout import local

if TYPE_CHECKING:
    from tasks.pretrain.engines.base import Engine


def shares(config: PretrainConfig, steps: int, step: int) -> dict[str, float]:
    """The share that the weights after `step` get in each average to which they are added.

    The exponential average begins with the weights of the first step. Its decay is min(ema_decay, (1 + t) / (10 + t))
    at step t, so that early weights are forgotten soon (`num_updates` of TensorFlow's ExponentialMovingAverage). The
    mean is uniform over the last k of every n steps (LAWA, Kaddour 2022).
    """
    added = {}
    if config.ema_decay is not None:
        added[EMA] = 1.0 if step == 1 else 1 - min(config.ema_decay, (1 + step) / (10 + step))
    if config.average is not None and step in (due := config.average.steps(steps)):
        added[MEAN] = 1 / (1 + due.index(step))
    return added


@torch.no_grad()
def update(engine: Engine, step: int) -> None:
    """Add the weights after `step` to this rank's shards of the averages."""
    for name, share in shares(engine.config, engine.spec.steps, step).items():
        averages, weights = [], []
        for master in engine.masters():
            state = engine.states[master]
            if not state:
                continue  # without a gradient so far: an optimizer takes a state that isn't empty for its own
            if name in state:
                averages.append(local(state[name]))
                weights.append(local(master.detach()))
            else:
                state[name] = master.detach().clone()
        if averages:
            torch._foreach_lerp_(averages, weights, share)


class Averages:
    """This rank's shards of the averages, once training has ended."""

    def __init__(self, engine: Engine) -> None:
        """Takes them out of the optimizer's states, which can then be freed."""
        self._engine = engine
        masters = engine.masters()
        names = [name for name in AVERAGES if any(name in engine.states[master] for master in masters)]
        self._held = {
            name: [engine.states[master].pop(name, master.detach().clone()) for master in masters] for name in names
        }

    def losses(self, validate: Callable[[], float]) -> dict[str, float]:
        """The validation loss of each average. Every rank must call it."""
        measured = {}
        for name in self._held:
            self.swap(name)
            measured[name] = validate()
            self.swap(name)
        return measured

    @torch.no_grad()
    def swap(self, name: str) -> None:
        """Exchange an average and the weights of the model. Every rank must call it."""
        for average, master in zip(self._held[name], self._engine.masters(), strict=True):
            held, weight = local(average), local(master.detach())
            before: Tensor = weight.clone()
            weight.copy_(held)
            held.copy_(before)
        self._engine.masters_changed()
