"""How a model is trained, as far as memory is concerned, and the parameters that one device holds. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from models.activations import Numbers, Precision, ceil_div, numbers, vocabulary_of_rank
from models.presets import (
    ForeignShape,
    Recompute,
    Shape,
    ShapeError,
    block_matrices,
    blocks_of_stage,
    count_parameters,
    router_parameters,
)

Engine = Literal["deepspeed", "fsdp", "ddp"]
Optimizer = Literal["adamw", "muon"]
Offload = Literal["none", "optimizer"]


@dataclass(frozen=True)
class Setup:
    """How a model is trained, as far as memory is concerned. Raises ShapeError for devices that can't be divided."""

    engine: Engine = "deepspeed"
    zero_stage: int = 0  # DeepSpeed's. FSDP always shards everything, and with 3 gathers weights twice per step
    precision: Precision = "mixed"
    optimizer: Optimizer = "adamw"
    devices: int = 1  # replicas × tensor_parallel × pipeline_parallel. Replicas are rows × context_parallel
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context_parallel: int = 1
    replicate: int = 1  # FSDP's hybrid sharding: groups of replicas that each hold all shards
    offload: Offload = "none"
    recompute: Recompute = "none"
    micro_batch: int = 1  # sequences of a forward pass
    micro_steps: int = 1  # forward passes per optimizer step on one device
    isolate: bool = False  # isolated documents within a window
    copies_states: bool = False  # to the host, to write checkpoints while training continues
    averages: int = 0  # of the weights, kept with the optimizer's states
    trained: float = 1.0  # numbers with gradients and optimizer states, as a share of the parameters
    compiled: bool = False  # its blocks
    cuda: bool = True

    def __post_init__(self) -> None:
        if self.devices % (self.tensor_parallel * self.pipeline_parallel):
            raise ShapeError(
                f"{self.devices} devices can't be divided into tensor_parallel {self.tensor_parallel} × "
                f"pipeline_parallel {self.pipeline_parallel}: set a number of devices divisible by their product"
            )
        if self.replicas % self.context_parallel:
            raise ShapeError(
                f"{self.replicas} data-parallel devices are not a multiple of context_parallel {self.context_parallel}"
                ": set a number of devices that is"
            )
        if self.replicas % self.replicate:
            raise ShapeError(
                f"{self.replicas} data-parallel devices can't be divided into {self.replicate} groups (replicate): set "
                "a replicate that divides devices / tensor_parallel"
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
        """Whether weights are in 16 bits beside float32 masters: DeepSpeed's from ZeRO 1 on, in mixed precision."""
        return self.engine == "deepspeed" and self.precision == "mixed" and self.zero_stage > 0

    @property
    def weight_bytes(self) -> int:
        """Bytes of a stored weight."""
        return 2 if self.halved else self.state_bytes

    @property
    def master_bytes(self) -> int:
        """Bytes of a float32 master weight. DeepSpeed has them from ZeRO 1 on, even of float32 weights."""
        if self.engine != "deepspeed" or self.precision in ("bfloat16", "float16"):
            return 0
        return 4 if self.zero_stage >= 1 else 0

    @property
    def state_bytes(self) -> int:
        """Bytes of a number in summed gradients, and in one of the optimizer's moments."""
        return 2 if self.precision in ("bfloat16", "float16") else 4


@dataclass(frozen=True)
class Held:
    """Parameters on one device before data-parallel sharding."""

    matrices: int  # of blocks, updated by Muon
    others: int  # embeddings, head, norms, biases, routers, always updated by AdamW

    @property
    def total(self) -> int:
        """All parameters."""
        return self.matrices + self.others

    def learned(self, setup: Setup) -> Held:
        """Those with gradients and optimizer states, of which an adapter's are elsewhere."""
        return Held(*(math.ceil(number * setup.trained) for number in (self.matrices, self.others)))

    def moments(self, setup: Setup) -> int:
        """Numbers in the optimizer's moments: two per parameter, but one for Muon's (Jordan et al. 2024). And in
        averages of the weights: one per parameter."""
        by_muon = setup.optimizer == "muon"
        return (1 if by_muon else 2) * self.matrices + 2 * self.others + setup.averages * self.total


def block_parameters(shape: Shape) -> int:
    """Parameters of one block that engines gather: its matrices, or all of a foreign one, of which layers are numbered
    in the names."""
    if not isinstance(shape, ForeignShape):
        return block_matrices(shape)
    numbered = (size for name, size in shape.sizes.items() if any(map(str.isdigit, name.split("."))))
    return sum(map(math.prod, numbered)) // shape.depth


def blocks_held(shape: Shape, setup: Setup, stage: int) -> int:
    """Blocks of a pipeline stage."""
    return len(blocks_of_stage(shape.depth, setup.pipeline_parallel, stage))


def held_parameters(shape: Shape, setup: Setup, stage: int = 0) -> Held:
    """Parameters on one device of a pipeline stage. The first stage has the embedding, the last the head, and both a
    tied matrix. Tensor parallelism divides matrices, biases of column-parallel ones, and the vocabulary if it is
    divisible (Shoeybi et al. 2019). A foreign shape, which neither divides, has all, and whole blocks as matrices."""
    if isinstance(shape, ForeignShape):
        in_blocks = shape.depth * block_parameters(shape)
        return Held(in_blocks, count_parameters(shape) - in_blocks)
    ways, blocks, width = setup.tensor_parallel, blocks_held(shape, setup, stage), shape.width
    biased = shape.family == "gpt2"
    norm = width * (2 if biased else 1)
    columns = (shape.heads + 2 * shape.kv_heads) * shape.head_dim + shape.feed_forward if biased else 0
    head_norms = sum(shape.head_norms or ())
    small = blocks * (shape.block_norms * norm + head_norms + ceil_div(columns, ways) + (2 * width if biased else 0))
    small += blocks * router_parameters(shape)
    vocabulary = vocabulary_of_rank(shape, ways) * width
    first, last = stage == 0, stage == setup.pipeline_parallel - 1
    if first:
        small += vocabulary + (shape.context * width if biased else 0)
    if last:
        small += norm + (0 if first and shape.tie_embeddings else vocabulary)
    return Held(blocks * ceil_div(block_matrices(shape), ways), small)
