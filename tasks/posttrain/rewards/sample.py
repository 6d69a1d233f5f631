"""Samples that are drawn from a generator seeded with the run's seed and the step, never from the state that a process
happens to be in, so a run that was killed draws again what it drew."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, step: int) -> Iterator[None]:
    """Random numbers of torch that depend on the seed and the step alone; those around go on as if nothing was."""
    digest = hashlib.sha256(f"answers {seed} {step}".encode()).digest()
    with torch.random.fork_rng():
        torch.manual_seed(int.from_bytes(digest[:8]) >> 1)
        yield
