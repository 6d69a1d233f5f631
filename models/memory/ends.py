"""Memory while a run starts, resumes and ends, which may be more than that of a step. No torch.

Weights are drawn a parameter at a time on the host, by every rank. DeepSpeed before stage 3 then holds the whole model
in float32 on each device, flattens it in the precision of the weights, and reads whole files of a checkpoint on each
rank. At the end, and for each snapshot, the first rank gathers the whole model in float32 on its host, a parameter at a
time, and copies it into the format in which it is written. The conversion of DeepSpeed's states for another stage or
number of processes is not included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from models.activations import ceil_div
from models.memory.resident import SPREAD, resident
from models.memory.setup import Held, Setup, held_parameters
from models.memory.training import TrainingMemory, of_stage, reduce_bucket, training_memory
from models.presets import ForeignShape, Shape, count_parameters

SUB_GROUP = 1_000_000_000  # parameters of which ZeRO 3 allocates gradients at a time


@dataclass(frozen=True)
class Moment:
    """Bytes at one time. On a CPU the device's memory is the host's, and what each rank needs there is in `device`."""

    device: int
    host: int  # for each rank
    first: int = 0  # on the host of the first rank, beside that


@dataclass(frozen=True)
class Ends:
    """The peak at each time: while the engine is built, a checkpoint read, and the model gathered and written."""

    start: Moment
    resume: Moment
    end: Moment


def memory_of_ends(shape: Shape, setup: Setup) -> Ends:
    """The memory of the device that needs most. With pipeline parallelism it is one of the largest stage."""
    return max((_of_stage(shape, setup, stage) for stage in range(setup.pipeline_parallel)), key=_most_device)


def most_memory(shape: Shape, setup: Setup) -> int:
    """The most bytes that a run needs on a device at any time. On a CPU, those of a process with its libraries."""
    memory, ends = training_memory(shape, setup), memory_of_ends(shape, setup)
    most = max(memory.total, _most_device(ends))
    if setup.cuda:
        return most
    saved = memory.weights + memory.buffers + ends.end.first  # the optimizer's states are gone by then
    return max(resident_in_step(shape, setup, memory), resident(max(ends.start.device, saved), 0))


def resident_in_step(shape: Shape, setup: Setup, memory: TrainingMemory) -> int:
    """Peak bytes of a process on a CPU in a step."""
    sent = 8 * largest_parameter(shape) if setup.sharded == 3 and setup.shares > 1 else 0  # gloo's copies, both ways
    spread = getattr(shape, "spread", SPREAD)  # traced shapes have their own
    return resident(memory.held, memory.total + memory.host - memory.held + sent, spread)


def largest_parameter(shape: Shape) -> int:
    """Numbers in the largest parameter: an embedding, or a fused matrix of a block."""
    if isinstance(shape, ForeignShape):
        return max(map(math.prod, shape.sizes.values()))
    inner = shape.all_feed_forward * (2 if shape.gated else 1)
    fused = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    learned = shape.context if shape.rope_theta is None else 0
    return shape.width * max(shape.vocab_size, inner, fused, learned)


def _most_device(ends: Ends) -> int:
    return max(ends.start.device, ends.resume.device, ends.end.device)


def _of_stage(shape: Shape, setup: Setup, stage: int) -> Ends:
    held, memory = held_parameters(shape, setup, stage), of_stage(shape, setup, stage)
    find = _deepspeed if setup.engine == "deepspeed" else _native
    offloaded = of_stage(shape, replace(setup, copies_states=False), stage).host  # no copies before the first save
    start, resume, end = find(setup, held, memory, largest_parameter(shape), offloaded)
    # The model in our form and in that of transformers, for which GPT-2's matrices are transposed beforehand. A foreign
    # one has just one form
    copies = 1 if isinstance(shape, ForeignShape) else 3 if shape.family == "gpt2" else 2
    end = Moment(end.device, end.host, copies * 4 * count_parameters(shape))
    return Ends(*(each if setup.cuda else _together(each) for each in (start, resume, end)))


def _together(moment: Moment) -> Moment:
    return Moment(moment.device + moment.host, 0, moment.first)


def _native(
    setup: Setup, held: Held, memory: TrainingMemory, largest: int, offloaded: int
) -> tuple[Moment, Moment, Moment]:
    """Each rank has its shard on the device, or on the host if offloaded, and draws whole parameters, from which it
    copies its shard. Gathered parameters are whole on each device."""
    buckets = memory.buffers  # DDP's, which live as long as the model
    ways = setup.tensor_parallel * (setup.shares if setup.sharded else 1)
    drawn = 4 * (largest + ceil_div(largest, ways))
    states = memory.weights + memory.optimizer + buckets
    gathered = 4 * largest if setup.devices > 1 and (setup.sharded or setup.devices > setup.replicas) else 0
    own = ceil_div(4 * held.total, setup.shares) if memory.weights == 0 else 0  # offloaded
    return (
        Moment(memory.weights + buckets, own + drawn),
        Moment(states, offloaded + 4 * largest),
        Moment(states + gathered, memory.host),
    )


def _deepspeed(
    setup: Setup, held: Held, memory: TrainingMemory, largest: int, offloaded: int
) -> tuple[Moment, Moment, Moment]:
    number, share = setup.weight_bytes, ceil_div(held.total, setup.shares)
    away, masters = setup.offload == "optimizer", 4 * share
    sums = setup.state_bytes * share if setup.zero_stage == 3 and not away else 0  # allocated once
    states = memory.weights + memory.optimizer + sums
    if setup.zero_stage == 3:
        held_on = memory.weights + (0 if away else masters + max(sums, 4 * min(share, SUB_GROUP)))
        start = max(memory.weights + number * largest, held_on + setup.state_bytes * reduce_bucket(setup, held))
        read, gathered = 12 * share, number * largest if setup.shares > 1 else 0
    elif setup.zero_stage:
        flattened = 2 * number * held.total
        start = max(4 * held.total, flattened, memory.weights + (0 if away else 2 * masters))
        read, gathered = number * held.total + 12 * share, 0
    else:
        start, read, gathered = 4 * held.total, 12 * held.total, 0
    return (
        Moment(start, 4 * largest + (2 * masters if away else 0)),
        Moment(states, offloaded + read),
        Moment(states + gathered, memory.host),
    )
