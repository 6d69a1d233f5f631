"""Engines: how one model is trained by one process or many, behind one interface.

base.py          the interface, and what all engines share
deepspeed.py     DeepSpeed's ZeRO 0 to 3
universal.py     converts its states for another number of processes or another stage
native.py        the base of the engines without DeepSpeed; torch.compile of blocks
trained.py       which weights are trained
adapted.py       merges an adapter into its base
initialise.py    the initial weights, drawn a parameter at a time
ddp.py           data parallelism (torch's DistributedDataParallel)
fsdp.py          sharded data parallelism (torch's FSDP2)
pipeline.py      pipeline parallelism (torch.distributed.pipelining)
parallel/        tensor parallelism, with ddp, fsdp or a pipeline; context parallelism, with ddp or fsdp
owners.py        Muon where ranks hold shards of matrices
shard_layout.py  where a rank's shard lies in the whole tensor
states.py        checkpoints of shards, for any native engine and any number of ranks
async_save.py    writes them while training continues

An engine changes how a step is computed, never what: losses are the same up to the rounding of sums. So it is set under
`runtime:` and is not part of a run's identity.
"""

from __future__ import annotations

from models.kernels.row_kernels import compiler_failure
from tasks.children.child import emit
from tasks.pretrain.check import check_engine
from tasks.pretrain.engines.base import Engine, MicroBatch
from tasks.pretrain.recipe.compiling import compiling
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World

__all__ = ["Engine", "MicroBatch", "open_engine"]


def open_engine(spec: TrainSpec, world: World) -> Engine:
    """The engine that the runtime names, with initial weights. Every rank must call it.

    Raises ConfigError for settings that the engine does not support.
    """
    check_engine(spec.runtime.pretrain)
    if spec.runtime.pretrain.compile == "auto":
        spec = _with_compile(spec, world)
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


def _with_compile(spec: TrainSpec, world: World) -> TrainSpec:
    """The spec with auto decided, which is said if it compiles."""
    cuda = world.device.type == "cuda"
    pays, why = compiling(spec.config, spec.trained_shape, spec.steps, spec.runtime, cuda=cuda)
    if pays:
        failure = compiler_failure(world.device.type)
        if world.reports:
            fails = f"the blocks aren't compiled: torch.compile fails on this machine ({failure})"
            emit(note=fails if failure else f"compiling the blocks: {why}")
        pays = not failure
    chosen = spec.runtime.with_changes("pretrain", compile="default" if pays else "off")
    return spec.model_copy(update={"runtime": chosen})
