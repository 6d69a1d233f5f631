"""Estimates of training memory per device for each engine, and of a checkpoint's size. No torch.

States are those that engines really allocate, as tests check. DeepSpeed's ZeRO (Rajbhandari et al. 2020, section 3)
keeps float32 master weights from stage 1 on, even of float32 weights, and sums the gradients of 16-bit ones in float32.
DDP and stage 0 train float32 weights under autocast. FSDP shards float32 weights and gathers them block by block in the
precision of matrix products (Zhao et al. 2023). The CUDA context (about half a gigabyte), NCCL and fragmentation are
not included.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.activations import Activations, activations, ceil_div, vocabulary_of_rank
from models.memory.setup import Held, Setup, block_parameters, blocks_held, held_parameters
from models.presets import ForeignShape, Shape, ShapeError

# Numbers in the bucket of DeepSpeed's reduction of gradients: half of its default, as they are reduced in float32
REDUCE_BUCKET = 250_000_000
ALLREDUCE_BUCKET = 500_000_000  # ZeRO 0's, which can't be set
# DeepSpeed's defaults, in numbers of parameters: the weights that ZeRO 3 keeps gathered, and prefetches
MAX_GATHERED, PREFETCHED = 1_000_000_000, 50_000_000


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on the device that needs most. Only one of loss, backward, reduce and step exists at a time."""

    weights: int
    gradients: int
    optimizer: int  # moments, and master weights if any
    gathered: int  # weights gathered for matrix products
    buffers: int  # communication buffers of gradients
    activations: int  # of all blocks, saved for the backward pass
    loss: int  # last norm, chunk of logits, head's gradient
    backward: int  # one block's backward pass: recomputed activations, and gradients
    reduce: int  # FSDP: a unit's gradients in float32, less the activations freed by then
    step: int  # float32 gradients for the master weights beside the others, when all activations are freed
    tied: int  # the gradients of a tied matrix from both of its uses and their sum, when all activations are freed
    host: int  # in host memory: offloaded states and gradients, copies of states that are being written
    fresh: bool = False  # gradients are made by the backward pass itself: they don't exist beside all activations

    @property
    def passing(self) -> int:
        """Peak bytes of a forward and backward pass while its activations exist, beside the states."""
        return self.activations + max(self.loss, self.backward, self.reduce)

    @property
    def after(self) -> int:
        """Peak bytes when all activations are freed, beside the states."""
        return max(self.step, self.tied)

    @property
    def peak(self) -> int:
        """Peak bytes within a step, beside the states that always exist."""
        return max(self.passing - (self.gradients if self.fresh else 0), self.after)

    @property
    def held(self) -> int:
        """Bytes that exist at the peak and for the whole training, on the device and the host."""
        gradients = 0 if self.fresh and self.passing - self.gradients > self.after else self.gradients
        return self.weights + gradients + self.optimizer + self.buffers + self.host

    @property
    def total(self) -> int:
        """Peak bytes of everything."""
        return self.weights + self.gradients + self.optimizer + self.gathered + self.buffers + self.peak


def training_memory(shape: Shape, setup: Setup) -> TrainingMemory:
    """Training memory of the device that needs most. With pipeline parallelism it is one of the largest stage."""
    if setup.pipeline_parallel > shape.depth:
        raise ShapeError(f"{setup.pipeline_parallel} pipeline stages are more than {shape.depth} blocks: set fewer")
    stages = (of_stage(shape, setup, stage) for stage in range(setup.pipeline_parallel))
    return max(stages, key=lambda memory: memory.total)


def of_stage(shape: Shape, setup: Setup, stage: int) -> TrainingMemory:
    """Training memory of the devices of a pipeline stage."""
    blocks = blocks_held(shape, setup, stage)
    held, sharded = held_parameters(shape, setup, stage), setup.sharded
    learned = held.learned(setup)
    passing = _activations(shape, setup, stage, blocks)

    def share(number: int, from_stage: int) -> int:
        return ceil_div(number, setup.shares) if sharded >= from_stage else number

    weights, gradients = share(setup.weight_bytes * held.total, 3), share(setup.state_bytes * learned.total, 2)
    states = share(setup.master_bytes * learned.total + setup.state_bytes * learned.moments(setup), 1)
    step, host = _step(setup, learned), 0
    if setup.offload == "optimizer":
        # FSDP's shards are in host memory, where the optimizer steps. DeepSpeed copies gradients there in float32, and
        # ZeRO 3 sums them there
        host = states + (weights if setup.engine == "fsdp" else share(4 * learned.total, 1))
        states, weights = 0, 0 if setup.engine == "fsdp" else weights
        if sharded == 3:
            host, gradients = host + gradients, 0
        step = step if setup.halved and setup.zero_stage == 1 else 0
    if setup.copies_states:
        host += share(setup.weight_bytes * learned.total, 3) + share(setup.state_bytes * learned.moments(setup), 1)
    return TrainingMemory(
        weights=weights,
        gradients=gradients,
        optimizer=states,
        gathered=_gathered(shape, setup, held),
        buffers=_buffers(setup, learned),
        activations=passing.blocks,
        loss=passing.loss,
        backward=passing.backward,
        reduce=_reduced(shape, setup, held, passing.blocks, blocks),
        step=step,
        tied=_tied(shape, setup),
        host=host,
        # On a GPU plans were compared with what an H200 took, with gradients beside all activations
        fresh=setup.engine == "ddp" and setup.micro_steps == 1 and not setup.cuda,
    )


def _tied(shape: Shape, setup: Setup) -> int:
    """Bytes at the end of a backward pass on a device with both ends of a model. Foreign steps are traced."""
    if isinstance(shape, ForeignShape) or not shape.tie_embeddings or setup.pipeline_parallel > 1:
        return 0
    return 3 * setup.form.residual * vocabulary_of_rank(shape, setup.tensor_parallel) * shape.width


def _step(setup: Setup, held: Held) -> int:
    """Bytes of float32 gradients for this rank's masters, beside the summed ones. At ZeRO 2 in 16 bits both are one."""
    if not setup.master_bytes or (setup.halved and setup.zero_stage == 2):
        return 0
    return ceil_div(4 * held.total, setup.shares)


def _activations(shape: Shape, setup: Setup, stage: int, blocks: int) -> Activations:
    if isinstance(shape, ForeignShape):
        from models.memory.traced import TracedShape  # imports torch

        assert isinstance(shape, TracedShape)
        return shape.step(setup.form, setup.micro_batch, setup.recompute)
    return activations(
        shape,
        setup.form,
        micro_batch=setup.micro_batch,
        recompute=setup.recompute,
        tensor_parallel=setup.tensor_parallel,
        context_parallel=setup.context_parallel,
        blocks=blocks,
        # 1F1B: a stage starts as many micro-batches as stages follow (Narayanan et al. 2021)
        in_flight=min(setup.pipeline_parallel - stage, setup.micro_steps),
        head=stage == setup.pipeline_parallel - 1,
        isolate=setup.isolate,
        compiled=setup.compiled,
    )


def _compute_bytes(setup: Setup) -> int:
    return 4 if setup.precision == "float32" else 2


def _gathered(shape: Shape, setup: Setup, held: Held) -> int:
    """Gathered weights beside the shards. DeepSpeed's go up to its limit. FSDP's are the outermost unit, a block and
    the next, or all if kept from the forward to the backward pass (not `zero_stage` 3), as copies even on one device.
    """
    if setup.engine == "fsdp":
        units = held.others + 2 * ceil_div(block_parameters(shape), setup.tensor_parallel)
        return _compute_bytes(setup) * (units if setup.zero_stage == 3 else held.total)
    if setup.sharded < 3 or setup.shares == 1:
        return 0
    return setup.weight_bytes * min(held.total, MAX_GATHERED + PREFETCHED)


def _buffers(setup: Setup, held: Held) -> int:
    """Gradient buffers: DeepSpeed's bucket, from ZeRO 1 on even on one device, or DDP's copy of all gradients. ZeRO 2
    fills the bucket in the precision of the weights, and reduces a float32 copy."""
    if setup.engine == "deepspeed" and setup.zero_stage:
        return (6 if setup.halved and setup.zero_stage == 2 else setup.state_bytes) * reduce_bucket(setup, held)
    if setup.replicas == 1 or setup.engine == "fsdp":
        return 0
    return setup.state_bytes * (min(held.total, ALLREDUCE_BUCKET) if setup.engine == "deepspeed" else held.total)


def reduce_bucket(setup: Setup, held: Held) -> int:
    """Numbers in the bucket of DeepSpeed's reduction: on a CPU only those that are written take memory."""
    return REDUCE_BUCKET if setup.cuda else min(REDUCE_BUCKET, held.total)


def _reduced(shape: Shape, setup: Setup, held: Held, kept: int, blocks: int) -> int:
    """FSDP's memory beyond activations to reduce the gradients of a block, when its activations are freed, or of the
    outermost unit, when all `kept` ones are: float32 gradients, and their reduced shard before it is accumulated."""
    if setup.engine != "fsdp" or (setup.replicas == 1 and setup.precision == "float32"):
        return 0
    block = ceil_div(block_parameters(shape), setup.tensor_parallel)
    ways_out = ((block, kept // blocks), (held.others, kept))
    return max(0, *(4 * (unit + ceil_div(unit, setup.shares)) - gone for unit, gone in ways_out))
