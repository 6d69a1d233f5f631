"""Under autocast every matrix product is in 16 bits, those of a hand-written backward pass too: on a GPU one that is
left in float32 takes ten times as long."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from models.config import ModelConfig
from models.presets import derive
from models.transformer import Transformer


class Products(TorchDispatchMode):
    """The precisions of the operands of every matrix product, those written into a given tensor too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.seen: list[tuple[str, torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in func.__name__ for name in ("mm", "matmul", "linear")):
            self.seen += [(func.__name__, part.dtype) for part in args if isinstance(part, torch.Tensor)]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_no_product_of_a_step_is_left_in_float32(family: str, half: torch.dtype) -> None:
    config = ModelConfig.model_validate({"family": family, "depth": 1, "width": 64, "heads": 2, "context": 16})
    model: nn.Module = Transformer(derive(config, 128), torch.Generator().manual_seed(0))
    ids_BT = torch.randint(0, 128, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", half), Products() as products:
        model(ids_BT, ids_BT).backward()
    assert len(products.seen) > 20
    assert {(name, dtype) for name, dtype in products.seen if dtype != half} == set()
