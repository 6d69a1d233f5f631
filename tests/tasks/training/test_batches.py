"""A global batch is shared out evenly, or refused."""

from __future__ import annotations

import math

import pytest

from storage.errors import ConfigError
from tasks.training.batches import BatchShare, share_batch

NAMES = ("sft.global_batch", "runtime.posttrain.micro_batch")


@pytest.mark.parametrize(
    ("batch", "ranks", "asked", "expected"),
    [(64, 1, None, (16, 4)), (64, 4, None, (16, 1)), (24, 2, None, (4, 3)), (64, 2, 32, (32, 1)), (6, 2, 1, (1, 3))],
)
def test_every_rank_takes_the_same(batch: int, ranks: int, asked: int | None, expected: tuple[int, int]) -> None:
    share = share_batch(batch, ranks, micro_batch=asked, default=lambda share: math.gcd(share, 16), names=NAMES)
    assert share == BatchShare(*expected)
    assert share.sequences * ranks == batch


@pytest.mark.parametrize(("batch", "ranks", "asked"), [(8, 3, None), (8, 2, 3), (2, 4, None)])
def test_what_cant_be_shared_evenly_is_refused_by_name(batch: int, ranks: int, asked: int | None) -> None:
    with pytest.raises(ConfigError, match=rf"sft.global_batch is {batch}, which {ranks} processes can't share evenly"):
        share_batch(batch, ranks, micro_batch=asked, default=lambda share: share, names=NAMES)
