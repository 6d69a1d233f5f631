"""The harness describes the machine after each evaluation: pip, compilers and drivers are asked, which takes 2 s of CPU
time, longer than many a benchmark. Our manifests say what matters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def undescribed() -> Iterator[None]:
    """Within the block `simple_evaluate` leaves that out."""
    from lm_eval import evaluator

    before = evaluator.add_env_info

    def nothing(storage: dict[str, Any]) -> None:
        """In place of the description."""

    evaluator.add_env_info = nothing
    try:
        yield
    finally:
        evaluator.add_env_info = before
