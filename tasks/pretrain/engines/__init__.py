"""Engines: how one model is trained by one process or many, behind one interface.

base.py       the interface, and what all engines share
deepspeed.py  DeepSpeed's ZeRO 0 to 3
ddp.py        a whole model in each process (torch's DistributedDataParallel)

An engine changes how a step is computed, never what: losses are the same but for the rounding of sums. So it is chosen
under `runtime:` and bears no identity.
"""

from __future__ import annotations

from tasks.pretrain.engines.base import Engine, MicroBatch
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World

__all__ = ["Engine", "MicroBatch", "open_engine"]


def open_engine(spec: TrainSpec, world: World) -> Engine:
    """The engine that the runtime names, with fresh weights. Every rank must call it."""
    if spec.runtime.engine == "ddp":
        from tasks.pretrain.engines.ddp import DdpEngine

        return DdpEngine(spec, world)
    from tasks.pretrain.engines.deepspeed import DeepSpeedEngine

    return DeepSpeedEngine(spec, world)
