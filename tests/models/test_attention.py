"""Isolated documents and sliding windows without a mask, as on a GPU: the same numbers, without memory for masks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import flex_attention as flex

from models.activations import Precision, activations, numbers, skips_hidden
from models.compute import executed_flops_per_token
from models.kernels import attention, blocks
from models.kernels.attention import document_mask, pack, takes_documents
from models.presets import Recompute, flops_per_token
from models.transformer import Transformer
from tasks.pretrain.engines.native import compile_blocks
from tests.models.cuda_stand_ins import as_on_cuda
from tests.models.test_memory import FAMILIES, RECOMPUTE, after_forward, measure, run_of, shape_of
from tests.models.varlen_on_cpu import register

CPU = torch.device("cpu")
ISOLATED = {"llama": True, "gpt2": True, "mistral": False, "mistral, isolated": True}


@pytest.fixture(params=["in blocks", "of variable length"])
def without_masks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention as on a GPU. On a CPU torch has a plain form of FlexAttention, but refuses gradients."""
    register()
    monkeypatch.setattr(flex, "_validate_device", lambda *given: None)
    monkeypatch.setattr(blocks, "_compiled", lambda: flex.flex_attention)
    monkeypatch.setattr(blocks, "works", lambda *given: request.param == "in blocks")
    monkeypatch.setattr(attention, "takes_documents", lambda x, head_dim: torch.is_grad_enabled())


def positions_of(*lengths: int, tokens: int) -> Tensor:
    """(1, T) positions of documents, the last of which is cut."""
    return torch.cat([torch.arange(length) for length in lengths])[None, :tokens]


def test_documents_are_where_positions_begin_anew_and_where_rows_do() -> None:
    first = positions_of(3, 1, 4, tokens=8)
    within = torch.tensor([[5, 6, 0, 1, 2, 3, 0, 1]])  # begins in the middle of a document
    packed = pack(torch.cat((first, within)), 3, 2, 8, CPU)
    assert packed.starts_S.tolist() == [0, 3, 4, 8, 10, 14, 16, 16]
    assert packed.starts_S.dtype == torch.int32
    assert (packed.longest, packed.window) == (8, 3)
    assert pack(None, 3, 2, 8, CPU).starts_S.tolist() == [0, 8, 16]


@pytest.mark.parametrize("documents", range(1, 9))
def test_numbers_of_documents_are_few_and_the_end_is_always_among_them(documents: int) -> None:
    starts = pack(positions_of(*[1] * documents, tokens=documents), None, 1, documents, CPU).starts_S.tolist()
    assert starts[: documents + 1] == list(range(documents + 1))
    assert len(starts) in (2, 4, 8, 16)


@pytest.mark.parametrize("window", [None, 100, 3])
@pytest.mark.parametrize("tokens", [64, 128, 300, 513])
def test_blocks_are_those_that_a_mask_of_all_tokens_has(tokens: int, window: int | None) -> None:
    within = positions_of(40, 500, tokens=tokens) + torch.arange(tokens).lt(40) * 5
    positions_BT = torch.cat((positions_of(20, 1, 129, 256, 500, tokens=tokens), within))
    earliest_BT = blocks.earliest(positions_BT, window, 2, tokens, CPU)
    places = torch.arange(tokens)
    seen = (places <= places[:, None]) & (places >= earliest_BT[:, :, None])
    assert torch.equal(seen, document_mask(positions_BT, window)[:, 0])
    found = blocks.blocks_of(earliest_BT).mask
    expected = flex.create_block_mask(found.mask_mod, 2, None, tokens, tokens, device="cpu")
    for kind in ("", "full_"):
        assert chosen(found, kind) == chosen(expected, kind)


def chosen(mask: flex.BlockMask, kind: str) -> list[set[int]]:
    """The blocks of keys of each block of queries."""
    counts, indices = (getattr(mask, f"{kind}kv_{part}").flatten(0, 2) for part in ("num_blocks", "indices"))
    return [set(row[:count].tolist()) for count, row in zip(counts, indices, strict=True)]


def test_a_device_without_the_kernel_is_told_and_does_without(caplog: pytest.LogCaptureFixture) -> None:
    assert not blocks.works(CPU, torch.float32, 16)
    assert "FlexAttention can't be used on this machine" in caplog.text
    assert "backward on CPU" in caplog.text


def test_a_kernel_that_errs_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(flex, "_validate_device", lambda *given: None)
    monkeypatch.setattr(blocks, "_compiled", lambda: flex.flex_attention)
    works = blocks.works.__wrapped__
    assert works(CPU, torch.float32, 16)
    assert works(CPU, torch.bfloat16, 16)
    monkeypatch.setattr(
        blocks, "_compiled", lambda: lambda *given, block_mask, **how: flex.flex_attention(*given, **how)
    )
    assert not works(CPU, torch.float32, 16)
    assert "% from that of plain attention" in caplog.text


def test_a_gpu_takes_documents_in_16_bits_and_with_gradients_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with FakeTensorMode():
        half, single = (torch.empty(1, dtype=dtype, device="cuda") for dtype in (torch.bfloat16, torch.float32))
    assert takes_documents(half, 64)
    assert not takes_documents(half, 20), "there is no kernel for this size"
    assert not takes_documents(single, 64)
    assert not takes_documents(torch.zeros(1, dtype=torch.bfloat16), 64)
    with torch.no_grad():
        assert not takes_documents(half, 64)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not takes_documents(half, 64)


@pytest.mark.parametrize("how", ["eager", "selective", "full"])
@pytest.mark.parametrize("case", ISOLATED)
@pytest.mark.usefixtures("without_masks")
def test_without_masks_loss_and_gradients_are_the_same(case: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Transformer(shape_of(case.partition(",")[0]))
    ids_BT = torch.randint(0, 300, (2, 64))
    positions_BT = torch.cat((positions_of(20, 1, 30, 40, tokens=64), positions_of(64, tokens=64)))
    given = (ids_BT, ids_BT.roll(-1, 1), positions_BT if ISOLATED[case] else None)
    with monkeypatch.context() as masks:
        masks.setattr(attention, "takes_documents", lambda x, head_dim: False)
        expected = loss_and_gradients(model, given)
    if how.startswith("compiled"):
        compile_blocks(model, "default")
    if "selective" in how or "full" in how:
        model.recompute = how.removeprefix("compiled, ")  # type: ignore[assignment]
    monkeypatch.setattr(attention, "additive", None)  # a mask must never be built
    loss, gradients = loss_and_gradients(model, given)
    assert loss == pytest.approx(expected[0], abs=1e-6)
    assert (gradients - expected[1]).abs().max() < 1e-6


@pytest.mark.soak
@pytest.mark.parametrize("how", ["compiled", "compiled, selective", "compiled, full"])
@pytest.mark.parametrize("without_masks", ["of variable length"], indirect=True)  # torch can't compile blocks for a CPU
@pytest.mark.usefixtures("without_masks")
def test_nor_does_compiling_change_them(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test_without_masks_loss_and_gradients_are_the_same("mistral, isolated", how, monkeypatch)


def loss_and_gradients(model: Transformer, given: tuple[Tensor, Tensor, Tensor | None]) -> tuple[float, Tensor]:
    model.zero_grad()
    loss = model(*given)
    loss.backward()
    found = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return loss.item(), torch.cat(found)


@pytest.mark.soak_but(
    "gpt2-bfloat16-none", "llama-bfloat16-none", "llama-untied-bfloat16-none", "mistral-bfloat16-none"
)
@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("precision", ["bfloat16", "mixed"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usefixtures("without_masks")
def test_no_memory_is_needed_for_masks(
    family: str, precision: Precision, recompute: Recompute, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_on_cuda(monkeypatch)
    autocast = precision == "mixed"
    shape, form = shape_of(family), numbers(precision, autocast=autocast, cuda=True)
    assert skips_hidden(shape, form)
    model = Transformer(shape).to(torch.float32 if autocast else torch.bfloat16)
    model.recompute = recompute
    after, _, _ = measure(run_of(model, 4, autocast=autocast, isolate=True))
    told = activations(shape, form, micro_batch=4, recompute=recompute, isolate=True)
    assert after == pytest.approx(after_forward(shape, form, 4, told.blocks), rel=0.01)


def test_what_a_window_hides_is_no_work_where_it_is_skipped() -> None:
    shape = shape_of("mistral")
    assert executed_flops_per_token(shape, skips_hidden=True) == flops_per_token(shape)
    assert executed_flops_per_token(shape) > flops_per_token(shape)
    whole = shape_of("llama")
    full = [executed_flops_per_token(whole, recompute="full", skips_hidden=skips) for skips in (False, True)]
    assert full[0] == full[1]
