"""The memory and the disk of a training, by arithmetic. No torch.

setup.py     how a model is trained, and the parameters that one device holds
training.py  the memory of a step, for each engine
ends.py      the memory of starting, resuming and ending, on the device and on the host
disk.py      checkpoints
"""

from models.memory.disk import checkpoint_bytes, checkpoint_disk
from models.memory.ends import Ends, Moment, largest_parameter, memory_of_ends, most_memory
from models.memory.setup import Engine, Held, Setup, held_parameters
from models.memory.training import MAX_GATHERED, PREFETCHED, REDUCE_BUCKET, TrainingMemory, training_memory

__all__ = [
    "MAX_GATHERED",
    "PREFETCHED",
    "REDUCE_BUCKET",
    "Ends",
    "Engine",
    "Held",
    "Moment",
    "Setup",
    "TrainingMemory",
    "checkpoint_bytes",
    "checkpoint_disk",
    "held_parameters",
    "largest_parameter",
    "memory_of_ends",
    "most_memory",
    "training_memory",
]
