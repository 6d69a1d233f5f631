"""The resident set of a training process on a CPU: its tensors, and what surrounds them. No torch.

Such a process keeps the memory of freed tensors (tasks/children/environment.py), so its resident set only grows. Small
objects that outlive a large tensor lie in its place, which then is too short for the next tensor of its size. Replaying
the allocations of a step to glibc, with one object of 48 bytes beside each tensor, gives a heap of 1.05 to 1.2 times
what the tensors take together. Real steps of a Llama with 8 or 30 blocks of SmolLM2's width have 1.14 to 1.20, but a
Gemma 2 of 26M parameters had 1.6, whose cause isn't known.
"""

from __future__ import annotations

LIBRARIES = 480_000_000  # bytes: Python, torch and transformers, in a process that trains a model of a megabyte
HEAP = 1.15  # bytes of the heap for a byte of tensors at the peak


def resident(tensors: int) -> int:
    """Peak bytes of a process with this peak of tensors."""
    return LIBRARIES + round(HEAP * tensors)
