"""The memory and the disk of a training, by arithmetic. No torch, but for traced.py and tuned.py.

setup.py     how a model is trained, and the parameters that one device holds
training.py  the memory of a step, for each engine
ends.py      the memory of starting, resuming and ending, on the device and on the host
resident.py  the resident set of a process on a CPU
traced.py    the step of a module of transformers, run without memory. Only these two import torch
tuned.py     the step of post-training, likewise
disk.py      checkpoints
"""

from models.memory.disk import checkpoint_bytes, checkpoint_disk
from models.memory.ends import Ends, Moment, largest_parameter, memory_of_ends, most_memory, resident_in_step
from models.memory.resident import LIBRARIES, resident
from models.memory.setup import Engine, Held, Setup, held_parameters
from models.memory.training import MAX_GATHERED, PREFETCHED, REDUCE_BUCKET, TrainingMemory, training_memory

__all__ = [
    "LIBRARIES",
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
    "resident",
    "resident_in_step",
    "training_memory",
]
