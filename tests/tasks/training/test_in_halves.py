"""A batch that doesn't fit in memory is processed in halves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from storage.errors import OutOfMemory
from tasks.training.recovery.out_of_memory import in_halves

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB"


def too_large(item: int) -> OutOfMemory:
    return OutOfMemory(f"{item} does not fit.", "Take another.")


def test_what_does_not_fit_is_taken_in_halves_and_comes_in_its_order() -> None:
    tried, forgotten = list[int](), list[int]()

    def work(items: Sequence[int]) -> list[int]:
        tried.append(len(items))
        if len(items) > 2:
            raise torch.OutOfMemoryError(FULL)
        return [10 * item for item in items]

    found = in_halves(work, range(7), too_large, lambda: forgotten.append(len(tried)))
    assert found == [10 * item for item in range(7)]
    assert tried == [7, 3, 1, 2, 4, 2, 2]
    assert forgotten == [1, 2, 5], "before each pair of halves"


def test_an_item_that_does_not_fit_alone_is_told() -> None:
    def work(items: Sequence[int]) -> list[int]:
        if 4 in items:
            raise MemoryError
        return [*items]

    with pytest.raises(OutOfMemory, match="4 does not fit") as caught:
        in_halves(work, range(6), too_large)
    assert isinstance(caught.value.__cause__, MemoryError)


def test_another_error_is_no_lack_of_memory() -> None:
    def work(items: Sequence[int]) -> list[int]:
        raise RuntimeError(f"{len(items)} are wrong")

    with pytest.raises(RuntimeError, match="2 are wrong"):
        in_halves(work, range(2), too_large)
