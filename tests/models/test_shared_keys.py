"""Keys and values shared by query heads, if a GPU's kernels can't: repeating them changes nothing, and is counted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from models.activations import Precision, activations, numbers
from models.kernels import attention
from models.kernels.attention import must_repeat_keys
from models.transformer import Transformer
from tests.models.cuda_stand_ins import as_on_cuda
from tests.models.test_memory import TOLERANCE, after_forward, measure, run_of, shape_of


def on_gpu(dtype: torch.dtype) -> Tensor:
    """A tensor without numbers on a GPU, which this machine may not have."""
    with FakeTensorMode():
        return torch.empty(1, dtype=dtype, device="cuda")


def test_a_gpu_shares_keys_in_its_flash_kernel_alone() -> None:
    mask = torch.zeros(4, 4)
    for dtype, masked, repeats in (
        (torch.bfloat16, None, False),
        (torch.bfloat16, mask, True),
        (torch.float32, None, True),
    ):
        assert must_repeat_keys(on_gpu(dtype), masked) is repeats
        assert not must_repeat_keys(torch.zeros(1, dtype=dtype), masked)
    with torch.autocast("cuda", torch.bfloat16):
        flash = not must_repeat_keys(on_gpu(torch.float32), None)
        assert flash == torch.is_autocast_enabled("cuda")


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("isolate", [False, True])
def test_repeated_keys_give_the_same_loss_and_gradients(
    family: str, isolate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = shape_of(family)
    assert shape.kv_heads < shape.heads
    torch.manual_seed(0)
    model = Transformer(shape)
    ids_BT = torch.randint(0, 300, (2, 64))
    positions = torch.arange(64).remainder(20).expand(2, -1) if isolate else None
    losses, gradients = [], []
    for repeats in (False, True):
        monkeypatch.setattr(attention, "must_repeat_keys", lambda x, mask, repeats=repeats: repeats)
        loss = model(ids_BT, ids_BT, positions)
        losses.append(loss.item())
        found = torch.autograd.grad(loss, list(model.parameters()))
        gradients.append(torch.cat([each.flatten() for each in found]))
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert (gradients[0] - gradients[1]).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("family", "precision", "changes"),
    [
        ("mistral", "float32", {}),
        ("mistral", "bfloat16", {"width": 80}),
        ("olmo3", "float32", {}),
        ("qwen3", "float32", {}),  # its norms keep the keys that are copied, too
    ],
)
def test_and_are_counted(
    family: str, precision: Precision, changes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "must_repeat_keys", lambda x, mask: True)
    as_on_cuda(monkeypatch)
    shape, form = shape_of(family, **changes), numbers(precision, autocast=False, cuda=True)
    model = Transformer(shape).to(getattr(torch, precision))
    after, at_forward, at_backward = measure(run_of(model, 4, autocast=False, isolate=False))
    told = activations(shape, form, micro_batch=4)
    assert after == pytest.approx(after_forward(shape, form, 4, told.blocks), rel=0.01)
    assert max(at_forward, at_backward) == pytest.approx(told.peak, rel=TOLERANCE)
    shared = activations(shape, numbers(precision, autocast=False, cuda=False), micro_batch=4)
    assert told.blocks != shared.blocks
