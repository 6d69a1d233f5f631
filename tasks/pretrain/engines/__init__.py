"""Engines: how one model is trained by one process or many, behind one interface.

base.py       the interface, and what all engines share
deepspeed.py  DeepSpeed's ZeRO 0 to 3
universal.py  its states put together, for another number of processes or another stage
native.py     what the engines of torch's own parts share
compiled.py   torch.compile, block by block
ddp.py        a whole model in each data rank (torch's DistributedDataParallel)
fsdp.py       shares of weights, gradients and states in each (torch's FSDP2)
pipeline.py   a run of blocks in each stage (torch.distributed.pipelining)
tensor.py     each layer shared among ranks, under ddp, fsdp or a pipeline
vocabulary.py embedding and loss over words shared among ranks
sums.py       sums over such ranks, in one direction
pieces.py     where what a rank holds lies in the whole
states.py     checkpoints by pieces, for any engine of torch's and any number of ranks

An engine changes how a step is computed, never what: losses are the same but for the rounding of sums. So it is chosen
under `runtime:` and bears no identity.
"""

from __future__ import annotations

from storage.errors import ConfigError
from tasks.pretrain.engines.base import Engine, MicroBatch
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World
from tasks.stage.runtime import PretrainRuntime

__all__ = ["Engine", "MicroBatch", "open_engine"]


def open_engine(spec: TrainSpec, world: World) -> Engine:
    """The engine that the runtime names, with fresh weights. Every rank must call it.

    Raises ConfigError for what the engine can't do.
    """
    _check(spec.runtime.pretrain)
    if spec.runtime.pretrain.engine == "deepspeed":
        from tasks.pretrain.engines.deepspeed import DeepSpeedEngine

        return DeepSpeedEngine(spec, world)
    if spec.runtime.pretrain.pipeline_parallel > 1:
        from tasks.pretrain.engines.pipeline import PipelineEngine

        return PipelineEngine(spec, world)
    if spec.runtime.pretrain.engine == "fsdp":
        from tasks.pretrain.engines.fsdp import FsdpEngine

        return FsdpEngine(spec, world)
    from tasks.pretrain.engines.ddp import DdpEngine

    return DdpEngine(spec, world)


def _check(runtime: PretrainRuntime) -> None:
    """What would have no effect is refused, by name."""
    engine, zero = runtime.engine, runtime.zero_stage
    can = {
        "tensor_parallel": engine != "deepspeed",
        "pipeline_parallel": engine == "ddp",
        # FSDP frees the memory that CUDA graphs would read weights from, and reads gradients when they may be gone
        "compile": engine == "ddp" or (engine == "fsdp" and runtime.compile != "reduce-overhead"),
        "offload": engine == "fsdp" or (engine == "deepspeed" and zero > 0),
        "zero_stage": engine != "ddp",
        "replicate": engine == "fsdp",
    }
    for name, possible in can.items():
        asked = getattr(runtime, name)
        if asked != type(runtime).model_fields[name].default and not possible:
            raise ConfigError(
                f"runtime.pretrain.{name} is {asked}, which the engine {engine} with zero_stage {zero} can't do.",
                f"Choose an engine that can (`gristmill profile schema` names them for {name}), or leave it out.",
            )
