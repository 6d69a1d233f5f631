"""Skips the harness's description of the machine. After each evaluation it queries pip, compilers and drivers for 2 s
of CPU time, longer than many benchmarks take, and our manifests record what matters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def undescribed() -> Iterator[None]:
    """Within the block, `simple_evaluate` doesn't describe the machine."""
    from lm_eval import evaluator

    before = evaluator.add_env_info

    def nothing(storage: dict[str, Any]) -> None:
        """Adds no description."""

    evaluator.add_env_info = nothing
    try:
        yield
    finally:
        evaluator.add_env_info = before
