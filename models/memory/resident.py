"""The resident set of a training process on a CPU: its tensors, and what surrounds them. No torch.

Such a process keeps the memory of freed tensors, or of small ones (tasks/children/environment.py). Objects that outlive
a tensor lie in its place, which then is too short for the next one of its size. What lives for the whole training takes
its own size. What comes and goes with a step takes more, as measured with models of 1.6M to 135M parameters in eight
families. Two runs of the same training may differ by a tenth.
"""

from __future__ import annotations

LIBRARIES = 510_000_000  # bytes: Python, torch and transformers, in a process that trains a model of a megabyte
SPREAD = 1.15  # bytes of the heap for a byte of tensors that come and go in a step of our decoder,
APART = 3, 100_000_000  # and up to so many bytes a third of them again: few tensors find a place to reuse


def resident(held: int, passing: int, spread: float = SPREAD) -> int:
    """Peak bytes of a process with tensors that are `held`, and with others at their peak."""
    share, most = APART
    return LIBRARIES + held + round(spread * passing) + min(passing // share, most)
