"""Memory as the formulas have it is the memory that torch allocates: every storage is counted, never estimated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from models.activations import Numbers, Precision, activations, numbers
from models.config import ModelConfig
from models.memory import MAX_GATHERED, PREFETCHED, REDUCE_BUCKET, Setup, held_parameters, training_memory
from models.presets import ModelShape, Recompute, ShapeError, block_matrices, count_parameters, derive
from models.transformer import Transformer
from tasks.pretrain.engines.native import compile_blocks
from tasks.pretrain.recipe.muon import Muon
from tests.models.cuda_stand_ins import as_on_cuda
from tests.models.live import LiveStorages, total

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"kv_heads": 2},
    "llama-untied": {"tie_embeddings": False, "feed_forward": 320},
    "mistral": {"kv_heads": 1, "sliding_window": 16},
    "qwen3": {"head_size": 24},
    "qwen3_moe": {"head_size": 24, "experts": 6, "experts_per_token": 3, "expert_feed_forward": 40},
    "gemma3": {"sliding_window": 16, "head_size": 24},
    "olmo3": {"sliding_window": 16, "kv_heads": 2},
}
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
PRECISIONS: dict[str, tuple[torch.dtype, Precision, bool]] = {
    "float32": (torch.float32, "float32", False),
    "bfloat16": (torch.bfloat16, "bfloat16", False),
    "autocast": (torch.float32, "mixed", True),
}
TOLERANCE = 0.05


def shape_of(name: str, vocab_size: int = 300, **more: Any) -> ModelShape:
    config = {"depth": 4, "width": 64, "heads": 4, "context": 64, **FAMILIES[name], **more}
    return derive(ModelConfig.model_validate({"family": name.partition("-")[0], **config}), vocab_size)


def run_of(model: Transformer, batch: int, *, autocast: bool, isolate: bool) -> Callable[[], Tensor]:
    """A forward pass with gradients already there, as in every micro-batch but the first."""
    tokens = model.shape.context
    ids_BT = torch.randint(0, model.shape.vocab_size, (batch, tokens))
    positions_BT = (torch.arange(tokens) % (tokens // 2)).expand(batch, -1) if isolate else None

    def forward() -> Tensor:
        context: AbstractContextManager[object] = torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast)
        with context:
            loss: Tensor = model(ids_BT, ids_BT, positions_BT)
            return loss

    forward().backward()
    return forward


def measure(forward: Callable[[], Tensor]) -> tuple[int, int, int]:
    """Bytes after the forward pass, at its peak, and at the peak of the backward pass."""
    with LiveStorages() as live:
        loss = forward()
        after, at_forward = live.size, live.peak
        live.peak = 0
        loss.backward()
    return after, at_forward, live.peak


def after_forward(shape: ModelShape, form: Numbers, batch: int, blocks: int) -> int:
    """Of the loss's memory, the last norm's numbers and the two gradients outlive the forward pass."""
    norm = 2 * 4 * shape.width if shape.family != "gpt2" and not form.cuda else form.residual * shape.width
    tokens = batch * shape.context
    return blocks + tokens * (norm + form.residual * shape.width) + 4 * shape.vocab_size * shape.width


@pytest.mark.soak_but(
    "gpt2-float32-none",
    "gpt2-bfloat16-selective",
    "gpt2-autocast-full",
    "llama-bfloat16-none",
    "llama-autocast-selective",
    "llama-untied-float32-full",
    "llama-untied-autocast-none",
    "mistral-float32-selective",
    "mistral-bfloat16-full",
    "qwen3-float32-none",
    "qwen3-autocast-selective",
    "qwen3-bfloat16-full",
    "qwen3_moe-float32-none",
    "qwen3_moe-autocast-selective",
    "qwen3_moe-bfloat16-full",
    "gemma3-float32-none",
    "gemma3-autocast-selective",
    "olmo3-bfloat16-none",
    "olmo3-autocast-full",
)
@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_activations_are_those_that_torch_keeps(family: str, precision: str, recompute: Recompute) -> None:
    dtype, name, autocast = PRECISIONS[precision]
    form = numbers(name, autocast=autocast, cuda=False)
    for batch, vocab_size in ((4, 300), (2, 2000)):  # blocks weigh more, then the loss
        shape = shape_of(family, vocab_size)
        model = Transformer(shape).to(dtype)
        model.recompute = recompute
        after, at_forward, at_backward = measure(run_of(model, batch, autocast=autocast, isolate=False))
        told = activations(shape, form, micro_batch=batch, recompute=recompute)
        assert after == pytest.approx(after_forward(shape, form, batch, told.blocks), rel=0.01)
        assert max(at_forward, at_backward) == pytest.approx(told.peak, rel=TOLERANCE)


@pytest.mark.soak  # it compiles
@pytest.mark.parametrize("precision", ["autocast", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_a_compiled_block_saves_what_is_not_computed_again(family: str, precision: str) -> None:
    """Bytes of blocks only, by the difference between depths: the loss and the ends of the model save the same."""
    dtype, name, autocast = PRECISIONS[precision]
    form = numbers(name, autocast=autocast, cuda=True)  # with a norm as one kernel, as when compiled
    saved, told = list[int](), list[int]()
    for depth in (1, 3):
        shape = shape_of(family, depth=depth)
        model = Transformer(shape).to(dtype)
        compile_blocks(model, "default")
        kept: dict[int, int] = {}

        def keep(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        ids_BT = torch.randint(0, 300, (2, shape.context))
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast),
        ):
            loss = model(ids_BT, ids_BT)
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        saved.append(sum(size for place, size in kept.items() if place not in weights))
        told.append(activations(shape, form, micro_batch=2, compiled=True).blocks)
        del loss
    assert saved[1] - saved[0] == pytest.approx(told[1] - told[0], rel=0.005)


def test_each_row_has_its_own_mask_when_documents_are_apart() -> None:
    shape, form = shape_of("llama", context=128), numbers("float32", autocast=False, cuda=False)
    after, _, _ = measure(run_of(Transformer(shape), 2, autocast=False, isolate=True))
    together, apart = (activations(shape, form, micro_batch=2, isolate=isolate).blocks for isolate in (False, True))
    masks, angles = 2 * 128 * 128, 128 * shape.head_dim  # each row has angles of its own, too
    assert apart - together == (masks + angles) * 4
    assert after == pytest.approx(after_forward(shape, form, 2, apart), rel=0.01)


@pytest.mark.parametrize("precision", ["bfloat16", "autocast"])
def test_the_loss_on_a_gpu_has_no_logits_in_float32(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_cuda(monkeypatch)
    dtype, name, autocast = PRECISIONS[precision]
    tokens = 600
    shape, form = shape_of("llama", 2001, context=tokens), numbers(name, autocast=autocast, cuda=True)
    head = Transformer(shape).head.to(dtype)
    x_BTC = torch.randn(1, tokens, shape.width, dtype=dtype, requires_grad=True)
    targets_BT = torch.randint(0, shape.vocab_size, (1, tokens))
    with LiveStorages() as live, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        head(x_BTC, targets_BT)
    last = tokens * (2 * form.residual * shape.width + 4)  # what the last norm saves, and its output
    told = activations(shape, form, micro_batch=1).loss - last
    assert live.peak == pytest.approx(told, rel=0.02)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "olmo3"])
@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_a_fused_norm_keeps_its_input_only(family: str, recompute: Recompute, monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_cuda(monkeypatch)
    # A GPU's kernels need no mask for a window
    shape, form = replace(shape_of(family), sliding_window=None), numbers("bfloat16", autocast=False, cuda=True)
    model = Transformer(shape).to(torch.bfloat16)
    model.recompute = recompute
    after, at_forward, at_backward = measure(run_of(model, 4, autocast=False, isolate=False))
    told = activations(shape, form, micro_batch=4, recompute=recompute)
    assert after == pytest.approx(after_forward(shape, form, 4, told.blocks), rel=0.01)
    assert max(at_forward, at_backward) == pytest.approx(told.peak, rel=TOLERANCE)


@pytest.mark.parametrize("family", ["gpt2", "llama-untied"])
def test_what_autograd_saves_is_what_is_counted_as_kept(family: str) -> None:
    shape, form = shape_of(family), numbers("float32", autocast=False, cuda=False)
    model = Transformer(shape)
    parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in parameters and tensor.is_floating_point():
            saved[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(ids_BT := torch.randint(0, 300, (4, 64)), ids_BT)
    # The loss keeps its two gradients itself, not through autograd
    own = 4 * 64 * 64 * 4 + 4 * 300 * 64
    told = after_forward(shape, form, 4, activations(shape, form, micro_batch=4).blocks)
    assert sum(saved.values()) + own == pytest.approx(told, rel=0.01)
    assert loss.requires_grad


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_gradients_and_adamw_states_are_those_that_torch_allocates(family: str, precision: Precision) -> None:
    shape = shape_of(family)
    model = Transformer(shape).to(getattr(torch, precision))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(ids_BT := torch.randint(0, 300, (1, 64)), ids_BT).backward()
    optimizer.step()
    parameters = list(model.parameters())
    told = training_memory(shape, Setup(engine="ddp", precision=precision, cuda=False))
    assert total(parameters) == told.weights
    assert total([parameter.grad for parameter in parameters]) == told.gradients
    states = [state for each in optimizer.state.values() for name, state in each.items() if name != "step"]
    assert total(states) == told.optimizer


@pytest.mark.parametrize("family", FAMILIES)
def test_muon_keeps_one_moment_of_matrices(family: str) -> None:
    shape = shape_of(family)
    model = Transformer(shape)
    matrices = [p for name, p in model.blocks.named_parameters() if p.dim() == 2 and "router" not in name]
    chosen = {id(parameter) for parameter in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    model(ids_BT := torch.randint(0, 300, (1, 64)), ids_BT).backward()
    states = []
    muon = Muon([{"params": matrices, "parts": [(len(matrix),) for matrix in matrices]}], momentum=0.95)
    optimizers: list[torch.optim.Optimizer] = [muon, torch.optim.AdamW(others)]
    for optimizer in optimizers:
        optimizer.step()
        states += [state for each in optimizer.state.values() for name, state in each.items() if name != "step"]
    told = training_memory(shape, Setup(engine="ddp", precision="float32", optimizer="muon", cuda=False))
    assert total(states) == told.optimizer


LLAMA_7B = derive(
    ModelConfig(family="llama", depth=32, width=4096, heads=32, feed_forward=11_008, context=2048), 32_000
)


def states(setup: Setup) -> float:
    """Bytes a parameter of weights, gradients and optimizer states."""
    told = training_memory(LLAMA_7B, setup)
    return (told.weights + told.gradients + told.optimizer) / count_parameters(LLAMA_7B)


def test_the_stages_of_zero_are_those_of_its_paper() -> None:
    # Rajbhandari et al. 2020, figure 1, with K = 12: 16 bytes, then 4 + 12/N, 2 + 14/N and 16/N; and from stage 1 on
    # two more of gradients, which are summed in float32
    expected = {0: 16, 1: 6 + 12 / 64, 2: 2 + 16 / 64, 3: 18 / 64}
    for stage, size in expected.items():
        assert states(Setup(zero_stage=stage, devices=64)) == pytest.approx(size, rel=1e-6)
    assert states(Setup(engine="ddp", devices=64)) == 16
    assert states(Setup(engine="fsdp", devices=64)) == pytest.approx(16 / 64, rel=1e-6)
    # A float32 master even of float32 weights, once they are sharded
    assert states(Setup(engine="ddp", averages=2, trained=0.25)) == 4 + (4 + 8 + 2 * 4) / 4
    assert states(Setup(precision="float32", zero_stage=0, devices=2)) == 16
    assert states(Setup(precision="float32", zero_stage=1, devices=2)) == 8 + 12 / 2


def test_buffers_and_gathered_weights_are_bounded_as_the_engines_bound_them() -> None:
    zero = training_memory(LLAMA_7B, Setup(zero_stage=3, devices=8))
    assert zero.gathered == 2 * (MAX_GATHERED + PREFETCHED)
    assert zero.buffers == 4 * REDUCE_BUCKET
    assert training_memory(LLAMA_7B, Setup(zero_stage=2, devices=8)).buffers == (2 + 4) * REDUCE_BUCKET
    others = count_parameters(LLAMA_7B) - 32 * block_matrices(LLAMA_7B)
    fsdp = [training_memory(LLAMA_7B, Setup(engine="fsdp", zero_stage=stage, devices=8)) for stage in (2, 3)]
    assert [told.gathered for told in fsdp] == [
        2 * count_parameters(LLAMA_7B),
        2 * (others + 2 * block_matrices(LLAMA_7B)),
    ]
    for alone in (Setup(engine="ddp"), Setup(zero_stage=3)):
        assert training_memory(LLAMA_7B, alone).gathered == training_memory(LLAMA_7B, alone).reduce == 0


def test_offloading_moves_the_optimizer_to_the_machine() -> None:
    there = training_memory(LLAMA_7B, Setup(zero_stage=2, devices=8))
    away = training_memory(LLAMA_7B, Setup(zero_stage=2, devices=8, offload="optimizer"))
    assert (there.host, away.optimizer) == (0, 0)
    assert away.host == pytest.approx(there.optimizer * 16 / 12, rel=1e-6)  # and float32 gradients beside it
    assert there.total - away.total >= there.optimizer
    # At stage 3 they are summed there too
    there, away = (
        training_memory(LLAMA_7B, Setup(zero_stage=3, devices=8, offload=offload)) for offload in ("none", "optimizer")
    )
    assert (away.gradients, away.host) == (0, there.optimizer + 2 * there.gradients)
    # FSDP steps on its shards in host memory: only gathered weights are on the device
    shares, away = (
        training_memory(LLAMA_7B, Setup(engine="fsdp", zero_stage=3, devices=8, offload=offload))
        for offload in ("none", "optimizer")
    )
    assert away.weights == away.gradients == away.optimizer == 0
    assert away.host == shares.weights + shares.gradients + shares.optimizer
    assert away.gathered == shares.gathered


def test_what_cant_be_shared_evenly_is_whole_on_each_rank() -> None:
    even, odd = (derive(ModelConfig(depth=2, width=64, heads=4, context=64), words) for words in (512, 513))
    halves = Setup(devices=2, tensor_parallel=2)
    assert held_parameters(even, halves).others == 256 * 64 + 5 * 64
    assert held_parameters(odd, halves).others == 513 * 64 + 5 * 64
    assert training_memory(odd, halves).loss > 1.7 * training_memory(even, halves).loss
    # Each rank has the norms of heads, for its own heads
    normed = derive(ModelConfig(family="qwen3", depth=2, width=64, heads=4, context=64), 512)
    assert 2 * held_parameters(normed, halves).total == count_parameters(normed) + 5 * 64 + 2 * 2 * 32
    # Of 5 blocks the pipeline's last stage takes 3, as the engine shares them out
    five = derive(ModelConfig(depth=5, width=64, heads=4, context=64), 512)
    stages = [held_parameters(five, Setup(devices=2, pipeline_parallel=2), stage).matrices for stage in (0, 1)]
    assert stages == [2 * block_matrices(five), 3 * block_matrices(five)]


def test_tensor_and_pipeline_parallel_shares_add_up_to_the_model() -> None:
    whole = count_parameters(LLAMA_7B)
    for tied in (False, True):
        shape = derive(ModelConfig(depth=6, width=256, heads=4, context=64, tie_embeddings=tied), 1000)
        pipeline = Setup(devices=4, pipeline_parallel=4)
        held = sum(held_parameters(shape, pipeline, stage).total for stage in range(4))
        # A tied matrix is in the first stage and in the last
        assert held == count_parameters(shape) + (1000 * 256 if tied else 0)
    halves = held_parameters(LLAMA_7B, Setup(devices=2, tensor_parallel=2)).total
    norms = (2 * 32 + 1) * 4096
    assert 2 * halves == whole + norms
    both = training_memory(LLAMA_7B, Setup(devices=8, tensor_parallel=2, pipeline_parallel=4, micro_steps=8))
    one = training_memory(LLAMA_7B, Setup())
    assert both.weights < one.weights / 7
    # The first stage of four has four micro-batches in flight, so pipelining doesn't save their activations
    piped = training_memory(LLAMA_7B, Setup(devices=4, pipeline_parallel=4, micro_steps=8))
    assert piped.activations == pytest.approx(one.activations, rel=0.01)
    gpt2 = derive(ModelConfig(family="gpt2", depth=2, width=64, heads=4, context=64), 300)
    assert held_parameters(gpt2, Setup()).total == count_parameters(gpt2)


def test_recomputation_and_smaller_batches_need_less() -> None:
    sizes = [training_memory(LLAMA_7B, Setup(recompute=recompute, micro_batch=4)).total for recompute in RECOMPUTE]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3
    one, two = (training_memory(LLAMA_7B, Setup(zero_stage=3, devices=64, micro_batch=size)) for size in (1, 2))
    assert one.total < two.total


def test_devices_that_cant_be_shared_out_are_refused() -> None:
    with pytest.raises(ShapeError, match="6 devices"):
        Setup(devices=6, tensor_parallel=4)
    with pytest.raises(ShapeError, match="64 pipeline stages"):
        training_memory(LLAMA_7B, Setup(devices=64, pipeline_parallel=64))
