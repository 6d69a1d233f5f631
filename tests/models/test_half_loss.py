"""The loss in 16 bits: in chunks, with kernels plain and compiled, over ranks, it is that of float64 up to rounding."""

from __future__ import annotations

import datetime
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from models.kernels import row_kernels
from models.kernels.cross_entropy import IGNORED, Batch, aligned_room, in_half
from models.kernels.row_kernels import PLAIN, RowKernels, compiled
from models.transformer import Head
from tests.models.test_products import Products

TOKENS, WIDTH, WORDS, ROWS = 150, 48, 1001, 64  # three chunks, the last of 22
HALVES = [torch.bfloat16, torch.float16]
LOSS, GRADIENT = {torch.bfloat16: 2e-3, torch.float16: 2e-4}, {torch.bfloat16: 1.5e-2, torch.float16: 2e-3}
Found = tuple[Tensor, Tensor, Tensor]  # the loss and its gradients


def numbers(half: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, a head, and targets, a quarter of them ignored."""
    generator = torch.Generator().manual_seed(0)
    x_NC = torch.randn(TOKENS, WIDTH, generator=generator).to(half)
    weight_VC = (torch.randn(WORDS, WIDTH, generator=generator) / 3).to(half)
    targets_N = torch.randint(WORDS, (TOKENS,), generator=generator)
    targets_N[::4] = IGNORED
    return x_NC, weight_VC, targets_N


def found(
    half: torch.dtype,
    z_loss: float,
    kernels: RowKernels,
    *,
    words: slice = slice(0, WORDS),
    divided: bool = True,
    group: dist.ProcessGroup | None = None,
) -> Found:
    """The loss by chunks, of the head's rows `words`."""
    x_NC, weight_VC, targets_N = numbers(half)
    weight_VC, kept_N1 = weight_VC[words], (targets_N != IGNORED)[:, None]
    dx_NC, dweight_VC = torch.empty_like(x_NC, dtype=torch.float32), torch.zeros(weight_VC.shape)
    share_N1 = kept_N1 / kept_N1.sum() if divided else kept_N1.float()
    batch = Batch(x_NC, weight_VC, targets_N, kept_N1, share_N1, dx_NC, dweight_VC, z_loss, words.start, group)
    return in_half(batch, ROWS, kernels) / kept_N1.sum(), dx_NC, dweight_VC


def exact(half: torch.dtype, z_loss: float) -> Found:
    """The loss by torch in float64, of the same numbers."""
    x_NC, weight_VC, targets_N = numbers(half)
    x_NC, weight_VC = x_NC.double().requires_grad_(), weight_VC.double().requires_grad_()
    logits_NV = x_NC @ weight_VC.T
    loss = F.cross_entropy(logits_NV, targets_N, ignore_index=IGNORED)
    square = logits_NV.logsumexp(-1)[targets_N != IGNORED].square().mean()
    dx_NC, dweight_VC = torch.autograd.grad(loss + z_loss * square, (x_NC, weight_VC))
    return loss.detach(), dx_NC, dweight_VC


def assert_close(one: Found, other: Found, half: torch.dtype) -> None:
    assert float(one[0]) == pytest.approx(float(other[0]), rel=LOSS[half])
    for mine, right in zip(one[1:], other[1:], strict=True):
        assert (mine.double() - right).norm() < GRADIENT[half] * right.norm()


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("z_loss", [0.0, 0.3])
def test_loss_and_gradients_are_those_of_float64(half: torch.dtype, z_loss: float) -> None:
    assert_close(found(half, z_loss, PLAIN), exact(half, z_loss), half)


def test_gradients_are_of_the_sum_where_they_are_not_divided() -> None:
    loss, dx_NC, dweight_VC = exact(torch.float16, 0.0)
    count = (numbers(torch.float16)[2] != IGNORED).sum()
    summed = found(torch.float16, 0.0, PLAIN, divided=False)
    assert_close(summed, (loss, dx_NC * count, dweight_VC * count), torch.float16)


def group_of(store: HashStore, rank: int) -> dist.ProcessGroup:
    """A group of two that are threads of this process."""
    backend, cpu = dist.ProcessGroup.BackendType.GLOO, torch.device("cpu")
    group = dist.ProcessGroup(store, rank, 2)
    group._set_default_backend(backend)
    group._register_backend(cpu, backend, dist.ProcessGroupGloo(store, rank, 2, datetime.timedelta(minutes=1)))
    return group


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_ranks_that_share_the_words_find_the_same(half: torch.dtype) -> None:
    store, shares = HashStore(), [slice(0, 600), slice(600, WORDS)]

    def of_rank(rank: int) -> Found:
        return found(half, 0.3, PLAIN, words=shares[rank], group=group_of(store, rank))

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(of_rank, range(2))
    assert torch.equal(one[0], other[0])
    assert_close((one[0], one[1] + other[1], torch.cat((one[2], other[2]))), exact(half, 0.3), half)


@pytest.mark.soak
@pytest.mark.parametrize("half", HALVES, ids=str)
def test_compiled_kernels_find_the_same_and_are_compiled_twice_at_most(half: torch.dtype) -> None:
    import torch._dynamo

    kernels = compiled("cpu")
    assert kernels is not PLAIN
    torch._dynamo.reset()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert_close(found(half, 0.3, kernels), exact(half, 0.3), half)
    for rows in (17, 30, 63):  # other lengths of a last chunk
        logits_NV, word_N1 = aligned_room(ROWS, WORDS, half, torch.device("cpu"))[:rows].fill_(1), torch.zeros(rows, 1)
        _, z_N1, _ = kernels.statistics(logits_NV, word_N1.long())
        assert z_N1.tolist() == [[WORDS]] * rows
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 4  # both functions


@pytest.mark.soak
def test_without_a_compiler_it_is_said_once_and_kernels_are_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch._dynamo
    import torch._inductor.config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("no-such-compiler",))
    monkeypatch.setattr(torch._inductor.config, "force_disable_caches", True)
    torch._dynamo.reset()
    compiled.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, row_kernels.__name__):
            assert compiled("cpu") is compiled("cpu") is PLAIN
    finally:
        compiled.cache_clear()
    told = [record.getMessage() for record in caplog.records if record.name == row_kernels.__name__]
    assert len(told) == 1
    assert "Install a C compiler" in told[0]


@pytest.mark.parametrize("words", [96, 1001, 50_257])
def test_rows_of_logits_begin_at_multiples_of_256_bytes(words: int) -> None:
    room = aligned_room(3, words, torch.bfloat16, torch.device("cpu"))
    assert room.shape == (3, words)
    assert room.stride(0) * room.element_size() % 256 == 0
    assert room.stride(0) < words + 128


def test_padding_between_rows_of_logits_is_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", lambda *size, **how: torch.full(size, torch.nan, **how))
    room = aligned_room(3, 1001, torch.bfloat16, torch.device("cpu"))
    assert room.isnan().all()
    assert not room.as_strided((3, 23), room.stride(), 1001).any()


class Strides(Products):
    """The strides between rows or columns of every operand of a matrix product."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if "mm" in func.__name__:
            self.strides += [max(part.stride()) for part in args if isinstance(part, Tensor)]
        return func(*args, **(kwargs or {}))

    strides: list[int]


def test_no_operand_of_a_product_is_unaligned() -> None:
    with Strides() as products:
        products.strides = []
        found(torch.bfloat16, 0.0, PLAIN)
    assert len(products.strides) == 3 * (3 + 2 + 2)
    assert {stride % 8 for stride in products.strides} == {0}  # 16 bytes


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_a_second_backward_pass_is_refused(half: torch.dtype) -> None:
    head = Head(8, 9, bias=False)
    torch.nn.init.normal_(head.weight)
    with torch.autocast("cpu", half):
        loss = head(torch.ones(1, 3, 8), torch.zeros(1, 3, dtype=torch.long))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="recompute the loss"):
        loss.backward()
