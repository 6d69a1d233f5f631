"""The size of a checkpoint, and the disk that checkpoints need. No torch."""

from __future__ import annotations

from models.memory.setup import Held, Setup
from models.presets import ForeignShape, Shape, block_matrices, count_parameters

# Measured bytes in a checkpoint around a parameter and its optimizer states
DEEPSPEED_HEAD, DISTRIBUTED_HEAD = 1_500, 8_500


def checkpoint_bytes(shape: Shape, setup: Setup) -> int:
    """The most bytes of one checkpoint, all devices' files together: weights, optimizer states, and the files' overhead
    for each tensor.

    ZeRO 3 writes only the masters: the weights are their rounded values.
    """
    count = count_parameters(shape)
    matrices = 0 if isinstance(shape, ForeignShape) else shape.depth * block_matrices(shape)
    learned = Held(matrices, count - matrices).learned(setup)
    weights = 0 if setup.engine == "deepspeed" and setup.zero_stage == 3 else setup.weight_bytes * learned.total
    states = setup.master_bytes * learned.total + setup.state_bytes * learned.moments(setup)
    return weights + states + _file_heads(shape, setup)


def _file_heads(shape: Shape, setup: Setup) -> int:
    """Names, shapes and zip headers: torch's distributed checkpoint has them once a tensor and rank."""
    if isinstance(shape, ForeignShape):
        tensors = len(shape.sizes)
    else:
        norms = shape.block_norms + (2 if shape.head_norms else 0)
        matrices = 5 if shape.experts else 4
        tensors = shape.depth * (12 if shape.family == "gpt2" else matrices + norms) + 5
    if setup.engine == "deepspeed":
        return DEEPSPEED_HEAD * tensors
    return DISTRIBUTED_HEAD * tensors * setup.tensor_parallel * (setup.shares if setup.engine == "fsdp" else 1)


def checkpoint_disk(size: int, kept: int) -> int:
    """Disk space for `kept` checkpoints: an old one is removed only when the next is complete."""
    return size * (kept + 1)
