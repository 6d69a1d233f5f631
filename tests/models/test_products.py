"""In which precision each matrix product runs: under autocast in 16 bits, wherever it stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from models.config import ModelConfig
from models.presets import derive
from models.transformer import Transformer

PRODUCTS = ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Products(TorchDispatchMode):
    """The precision of each matrix product, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() in PRODUCTS:
            self.seen.append((func.name(), next(each.dtype for each in reversed(args) if isinstance(each, Tensor))))
        return func(*args, **(kwargs or {}))


def products(*, autocast: bool) -> list[tuple[str, torch.dtype]]:
    model = Transformer(derive(ModelConfig(depth=2, width=32, heads=2, context=16), 96))
    ids_BT = torch.randint(96, (2, 16))
    with Products() as seen:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(ids_BT, ids_BT)
        loss.backward()
    return seen.seen


def test_under_autocast_every_product_is_in_16_bits() -> None:
    found = products(autocast=True)
    assert len(found) == 3 * (4 * 2 + 1)  # forward and twice backward: four matrices of each block, and the head
    assert {dtype for _, dtype in found} == {torch.bfloat16}
    assert {dtype for _, dtype in products(autocast=False)} == {torch.float32}
