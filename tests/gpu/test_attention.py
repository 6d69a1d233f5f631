"""The kernels that training prefers exist, and are right."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.kernels import blocks
from models.kernels.attention import HOPPER, attend, for_one_shape

HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("head_dim", [32, 64, 80, 128])
@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.usefixtures("cuda")
def test_documents_are_kept_apart_in_blocks(half: torch.dtype, head_dim: int) -> None:
    assert blocks.works(torch.device("cuda", torch.cuda.current_device()), half, head_dim)


@pytest.mark.parametrize("shape", [(4, 1024, 12, 64), (2, 4096, 16, 128), (3, 520, 4, 32)], ids=str)
@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.usefixtures("cuda")
def test_the_fastest_kernel_gives_what_plain_attention_gives(shape: tuple[int, ...], half: torch.dtype) -> None:
    device = torch.device("cuda")
    if torch.cuda.get_device_capability(device) != HOPPER:
        pytest.skip("cuDNN's kernel was measured on Hopper")
    torch.manual_seed(0)
    given = [torch.randn(shape, device=device).to(half).requires_grad_() for _ in range(3)]
    exact = [part.detach().float().requires_grad_() for part in given]
    with for_one_shape(device):
        found = outcome(given)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        assert torch.equal(found[0], outcome(given)[0]), "another kernel"
    with sdpa_kernel(SDPBackend.MATH):
        for one, other in zip(found, outcome(exact), strict=True):
            assert (one.float() - other).norm() < blocks.CLOSE * other.norm()


def outcome(given: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of its squares."""
    output = attend(given[0], given[1], given[2], None)
    return [output.detach(), *torch.autograd.grad(output.float().square().sum(), given)]
