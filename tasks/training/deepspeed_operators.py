"""Keeps DeepSpeed from compiling at run time what training doesn't need."""

from __future__ import annotations


def decline_shared_memory_operator() -> None:
    """Before DeepSpeed starts: it would compile an operator for shared memory (75 s of CPU) that only its inference
    uses. Its table of compatible operators is meant to be edited."""
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
