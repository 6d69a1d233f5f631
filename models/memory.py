"""Estimates of training memory per device for each engine, and of a checkpoint's size. No torch.

States are those that engines really allocate, as tests check: DeepSpeed's ZeRO (Rajbhandari et al. 2020, section 3)
keeps float32 master weights from stage 1 on, even of float32 weights, and sums the gradients of 16-bit ones in float32;
DDP and stage 0 train float32 weights under autocast; FSDP shards float32 weights and gathers them block by block in the
precision of matrix products (Zhao et al. 2023). The CUDA context (about half a gigabyte), NCCL and fragmentation come
on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.activations import Activations, Numbers, Precision, activations, ceil_div, numbers, vocabulary_of_rank
from models.presets import ModelShape, Recompute, ShapeError, block_matrices, blocks_of_stage, count_parameters

Engine = Literal["deepspeed", "fsdp", "ddp"]
Optimizer = Literal["adamw", "muon"]
Offload = Literal["none", "optimizer"]

# Numbers in the bucket of DeepSpeed's reduction of gradients: half of its default, as they are reduced in float32
REDUCE_BUCKET = 250_000_000
ALLREDUCE_BUCKET = 500_000_000  # of ZeRO 0, which can't be set
# DeepSpeed's defaults, in numbers of parameters: the weights that ZeRO 3 keeps gathered, and prefetches
MAX_GATHERED, PREFETCHED = 1_000_000_000, 50_000_000

# Measured bytes in a checkpoint around a parameter and its optimizer states
DEEPSPEED_HEAD, DISTRIBUTED_HEAD = 1_500, 8_500


@dataclass(frozen=True)
class Setup:
    """How a model is trained, as far as memory is concerned. Raises ShapeError where devices can't be divided so."""

    engine: Engine = "deepspeed"
    zero_stage: int = 0  # of DeepSpeed; DDP shards nothing, FSDP everything, and with 3 gathers weights twice per step
    precision: Precision = "mixed"
    optimizer: Optimizer = "adamw"
    devices: int = 1  # replicas × tensor_parallel × pipeline_parallel
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    replicate: int = 1  # FSDP's hybrid sharding: groups of replicas that each hold all shards
    offload: Offload = "none"
    recompute: Recompute = "none"
    micro_batch: int = 1  # sequences of a forward pass
    micro_steps: int = 1  # forward passes per optimizer step on one device
    isolate: bool = False  # isolated documents within a window
    cuda: bool = True

    def __post_init__(self) -> None:
        if self.devices % (self.tensor_parallel * self.pipeline_parallel):
            raise ShapeError(
                f"{self.devices} devices can't be divided into tensor_parallel {self.tensor_parallel} × "
                f"pipeline_parallel {self.pipeline_parallel}: set a number of devices that is a multiple of both"
            )
        if self.replicas % self.replicate:
            raise ShapeError(
                f"data-parallel devices are {self.replicas}, which can't be divided into replicate {self.replicate} "
                "groups: set a replicate that divides devices / tensor_parallel"
            )

    @property
    def replicas(self) -> int:
        """Data-parallel copies of the model."""
        return self.devices // (self.tensor_parallel * self.pipeline_parallel)

    @property
    def shares(self) -> int:
        """Number of shards of ZeRO and FSDP."""
        return max(1, self.replicas // self.replicate)

    @property
    def sharded(self) -> int:
        """The equivalent ZeRO stage: 1 shards optimizer states, 2 gradients too, 3 weights too."""
        return {"ddp": 0, "fsdp": 3}.get(self.engine, self.zero_stage)

    @property
    def form(self) -> Numbers:
        """Sizes of the numbers in the forward pass."""
        return numbers(self.precision, autocast=self.sharded == 0, cuda=self.cuda)

    @property
    def halved(self) -> bool:
        """Whether weights are in 16 bits beside float32 masters: DeepSpeed's from ZeRO 1 on, where products are."""
        return self.engine == "deepspeed" and self.precision == "mixed" and self.zero_stage > 0

    @property
    def weight_bytes(self) -> int:
        """Bytes of a stored weight."""
        return 2 if self.halved else self.state_bytes

    @property
    def master_bytes(self) -> int:
        """Bytes of a float32 master weight: DeepSpeed's, from ZeRO 1 on in any precision."""
        if self.engine != "deepspeed" or self.precision in ("bfloat16", "float16"):
            return 0
        return 4 if self.zero_stage >= 1 else 0

    @property
    def state_bytes(self) -> int:
        """Bytes of a number in the sum of gradients, and in one of the optimizer's moments."""
        return 2 if self.precision in ("bfloat16", "float16") else 4


@dataclass(frozen=True)
class Held:
    """Parameters on one device before data-parallel sharding."""

    matrices: int  # of blocks, updated by Muon
    others: int  # embeddings, head, norms, biases, always updated by AdamW

    @property
    def total(self) -> int:
        """All parameters."""
        return self.matrices + self.others

    def moments(self, optimizer: Optimizer) -> int:
        """Numbers in the optimizer's moments: two per parameter, for Muon's one (Jordan et al. 2024)."""
        return (2 if optimizer == "adamw" else 1) * self.matrices + 2 * self.others


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on the device with the most. Of loss, backward, reduce and step only one exists at a time."""

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
    host: int  # in host memory: offloaded states and gradients

    @property
    def peak(self) -> int:
        """Peak bytes of what exists only within a step."""
        return max(self.activations + max(self.loss, self.backward, self.reduce), self.step)

    @property
    def total(self) -> int:
        """Peak bytes of everything."""
        return self.weights + self.gradients + self.optimizer + self.gathered + self.buffers + self.peak


def training_memory(shape: ModelShape, setup: Setup) -> TrainingMemory:
    """Training memory of the device that needs most, with pipeline parallelism that of the largest stage."""
    if setup.pipeline_parallel > shape.depth:
        raise ShapeError(f"{setup.pipeline_parallel} pipeline stages are more than {shape.depth} blocks: set fewer")
    stages = (_of_stage(shape, setup, stage) for stage in range(setup.pipeline_parallel))
    return max(stages, key=lambda memory: memory.total)


def _of_stage(shape: ModelShape, setup: Setup, stage: int) -> TrainingMemory:
    blocks = _blocks(shape, setup, stage)
    held, sharded = held_parameters(shape, setup, stage), setup.sharded
    passing = _activations(shape, setup, stage, blocks)

    def share(number: int, from_stage: int) -> int:
        return ceil_div(number, setup.shares) if sharded >= from_stage else number

    weights, gradients = share(setup.weight_bytes * held.total, 3), share(setup.state_bytes * held.total, 2)
    states = share(setup.master_bytes * held.total + setup.state_bytes * held.moments(setup.optimizer), 1)
    step, host = _step(setup, held), 0
    if setup.offload == "optimizer":
        # FSDP's shards are in host memory, where the optimizer steps; DeepSpeed's gradients are copied there in
        # float32, and those of ZeRO 3 are summed there
        host = states + (weights if setup.engine == "fsdp" else share(4 * held.total, 1))
        states, weights = 0, 0 if setup.engine == "fsdp" else weights
        if sharded == 3:
            host, gradients = host + gradients, 0
        step = step if setup.halved and setup.zero_stage == 1 else 0
    return TrainingMemory(
        weights=weights,
        gradients=gradients,
        optimizer=states,
        gathered=_gathered(shape, setup, held),
        buffers=_buffers(setup, held),
        activations=passing.blocks,
        loss=passing.loss,
        backward=passing.backward,
        reduce=_reduced(shape, setup, held, passing.blocks, blocks),
        step=step,
        host=host,
    )


def _step(setup: Setup, held: Held) -> int:
    """Float32 gradients of this rank's masters, beside the sums: at ZeRO 2 in 16 bits they are the same."""
    if not setup.master_bytes or (setup.halved and setup.zero_stage == 2):
        return 0
    return ceil_div(4 * held.total, setup.shares)


def _blocks(shape: ModelShape, setup: Setup, stage: int) -> int:
    """Blocks of a pipeline stage."""
    return len(blocks_of_stage(shape.depth, setup.pipeline_parallel, stage))


def held_parameters(shape: ModelShape, setup: Setup, stage: int = 0) -> Held:
    """Parameters on one device of a pipeline stage; the first has the embedding, the last the head, and both a tied
    matrix. Tensor parallelism divides matrices, biases of column-parallel ones, and the vocabulary if it is divisible
    (Shoeybi et al. 2019)."""
    ways, blocks, width = setup.tensor_parallel, _blocks(shape, setup, stage), shape.width
    biased = shape.family == "gpt2"
    norm = width * (2 if biased else 1)
    columns = (shape.heads + 2 * shape.kv_heads) * shape.head_dim + shape.feed_forward if biased else 0
    small = blocks * (2 * norm + ceil_div(columns, ways) + (2 * width if biased else 0))
    vocabulary = vocabulary_of_rank(shape, ways) * width
    first, last = stage == 0, stage == setup.pipeline_parallel - 1
    if first:
        small += vocabulary + (shape.context * width if biased else 0)
    if last:
        small += norm + (0 if first and shape.tie_embeddings else vocabulary)
    return Held(blocks * ceil_div(block_matrices(shape), ways), small)


def _activations(shape: ModelShape, setup: Setup, stage: int, blocks: int) -> Activations:
    return activations(
        shape,
        setup.form,
        micro_batch=setup.micro_batch,
        recompute=setup.recompute,
        tensor_parallel=setup.tensor_parallel,
        blocks=blocks,
        # 1F1B: a stage starts as many micro-batches as stages follow (Narayanan et al. 2021)
        in_flight=min(setup.pipeline_parallel - stage, setup.micro_steps),
        head=stage == setup.pipeline_parallel - 1,
        isolate=setup.isolate,
    )


def _compute_bytes(setup: Setup) -> int:
    return 4 if setup.precision == "float32" else 2


def _gathered(shape: ModelShape, setup: Setup, held: Held) -> int:
    """Gathered weights beside the shards: DeepSpeed's up to its limit; FSDP's outermost unit, a block and the next, or
    all if they are kept from the forward to the backward pass (not `zero_stage` 3). FSDP copies even on one device."""
    if setup.engine == "fsdp":
        units = held.others + 2 * ceil_div(block_matrices(shape), setup.tensor_parallel)
        return _compute_bytes(setup) * (units if setup.zero_stage == 3 else held.total)
    if setup.sharded < 3 or setup.shares == 1:
        return 0
    return setup.weight_bytes * min(held.total, MAX_GATHERED + PREFETCHED)


def _buffers(setup: Setup, held: Held) -> int:
    """Gradient buffers: DeepSpeed's bucket, from ZeRO 1 on even on one device, or DDP's copy of all gradients. ZeRO 2
    fills the bucket in the precision of the weights, and reduces a float32 copy."""
    if setup.engine == "deepspeed" and setup.zero_stage:
        return (6 if setup.halved and setup.zero_stage == 2 else setup.state_bytes) * REDUCE_BUCKET
    if setup.replicas == 1 or setup.engine == "fsdp":
        return 0
    return setup.state_bytes * (min(held.total, ALLREDUCE_BUCKET) if setup.engine == "deepspeed" else held.total)


def _reduced(shape: ModelShape, setup: Setup, held: Held, kept: int, blocks: int) -> int:
    """What FSDP needs beyond activations to reduce the gradients of a block, when its activations are freed, or of the
    outermost unit, when all `kept` are: float32 gradients, and their reduced shard before it is accumulated."""
    if setup.engine != "fsdp" or (setup.replicas == 1 and setup.precision == "float32"):
        return 0
    block = ceil_div(block_matrices(shape), setup.tensor_parallel)
    ways_out = ((block, kept // blocks), (held.others, kept))
    return max(0, *(4 * (unit + ceil_div(unit, setup.shares)) - gone for unit, gone in ways_out))


def checkpoint_bytes(shape: ModelShape, setup: Setup) -> int:
    """Bytes of one checkpoint at most, all devices' files together: weights, optimizer states, and what files hold
    around each tensor.

    ZeRO 3 writes the master instead of the weights, which are its rounding.
    """
    count = count_parameters(shape)
    matrices = shape.depth * block_matrices(shape)
    states = setup.state_bytes * Held(matrices, count - matrices).moments(setup.optimizer)
    weights = 0 if setup.engine == "deepspeed" and setup.zero_stage == 3 else setup.weight_bytes * count
    return weights + setup.master_bytes * count + states + _file_heads(shape, setup)


def _file_heads(shape: ModelShape, setup: Setup) -> int:
    """Names, shapes and zip headers: torch's distributed checkpoint has them once a tensor and rank."""
    tensors = shape.depth * (12 if shape.family == "gpt2" else 6) + 5
    if setup.engine == "deepspeed":
        return DEEPSPEED_HEAD * tensors
    return DISTRIBUTED_HEAD * tensors * setup.tensor_parallel * (setup.shares if setup.engine == "fsdp" else 1)


def checkpoint_disk(size: int, kept: int) -> int:
    """Disk space for `kept` checkpoints: an old one is removed only when the next is complete."""
    return size * (kept + 1)
