"""FLOPs as torch counts them, their cost, and the meaning of tokens per parameter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from models.compute import bill, compute_optimal, executed_flops_per_token, judge_ratio
from models.config import ModelConfig
from models.devices import DEVICES, Device, UnknownDevice, find_device, reported_device
from models.fit import changes, ways_to_fit
from models.memory import Setup, training_memory
from models.presets import ModelShape, Recompute, count_parameters, derive, flops_per_token
from models.transformer import Transformer
from tasks.pretrain.check import check_engine
from tests.runtimes import runtime_of

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"kv_heads": 2},
    "llama-untied": {"tie_embeddings": False, "kv_heads": 1},
    "mistral": {"kv_heads": 2, "sliding_window": 16},
    "qwen3": {"head_size": 24},
    "qwen3_moe": {"head_size": 24, "experts": 6, "experts_per_token": 3, "expert_feed_forward": 40},
    "gemma3": {"sliding_window": 16, "global_every": 2},
    "olmo3": {"sliding_window": 16},
}


def shape_of(name: str, **more: Any) -> ModelShape:
    config = {"depth": 3, "width": 64, "heads": 4, "context": 64, **FAMILIES[name], **more}
    return derive(ModelConfig.model_validate({"family": name.partition("-")[0], **config}), 300)


def llama_7b(**more: Any) -> ModelShape:
    config = {"depth": 32, "width": 4096, "heads": 32, "feed_forward": 11_008, "context": 2048, **more}
    return derive(ModelConfig.model_validate(config), 32_000)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_executed_flops_are_those_that_torch_counts(family: str, recompute: Recompute) -> None:
    shape = shape_of(family)
    model = Transformer(shape)
    model.recompute = recompute
    ids_BT = torch.randint(0, 300, (2, 64))
    # Torch has no count for the CPU's fused attention, nor for the chunked loss's addmm_ in place
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(ids_BT).sum().backward()
    counted = counter.get_total_flops() / ids_BT.numel()
    assert executed_flops_per_token(shape, recompute=recompute) == pytest.approx(counted, rel=0.01)


def test_what_is_not_seen_is_no_flop_of_the_model() -> None:
    shape = shape_of("llama")
    whole, apart = flops_per_token(shape), flops_per_token(shape, document=16)
    assert whole - apart == 12 * shape.depth * shape.width * (64 - 16)
    assert flops_per_token(shape_of("mistral"), document=8) < flops_per_token(shape_of("mistral"))
    assert flops_per_token(shape_of("mistral")) < executed_flops_per_token(shape_of("mistral"))
    # GPT-3's appendix D: 6 FLOPs a parameter and token, attention left out
    assert flops_per_token(llama_7b()) == pytest.approx(6 * 6.738e9, rel=0.15)


def test_hours_and_money_follow_from_flops() -> None:
    flops = 1e18
    device = Device("one", "One", 1, 1e15, 5e14, 1e14, price=3.0, utilisation=0.5)
    cost = bill(flops, device, devices=4)
    assert cost.device_hours == pytest.approx(1e18 / 0.5e15 / 3600)
    assert cost.device_hours is not None
    assert cost.hours == pytest.approx(cost.device_hours / 4)
    assert cost.money == pytest.approx(cost.device_hours * 3)
    alone = bill(flops, device).hours
    assert alone is not None
    assert bill(flops, device, products="float32").hours == pytest.approx(10 * alone)
    assert bill(flops, device, products="tf32").hours == pytest.approx(2 * alone)
    unknown = bill(flops, Device("cpu", "this CPU", 1, None, None, 1e11, None))
    assert (unknown.hours, unknown.money) == (None, None)
    # LLaMA 7B took 82,432 hours of A100 80GB (Touvron et al. 2023, table 15): 1T tokens of a context of 2,048
    hours = bill(1e12 * flops_per_token(llama_7b()), find_device("a100")).device_hours
    assert hours == pytest.approx(82_432, rel=0.25)


def test_a_device_that_is_not_in_the_table_is_named_with_those_that_are() -> None:
    with pytest.raises(UnknownDevice, match=r"h101 is not one of .*h100"):
        find_device("h101")
    for name, device in DEVICES.items():
        assert device.name == name
        assert device.single is not None
        assert device.tf32 is not None
        assert device.half is not None
        assert 0 < device.single <= device.tf32 <= device.half < 1e16
        assert device.memory >= 24e9


def test_a_gpu_has_the_data_sheet_of_its_own_name_alone() -> None:
    assert reported_device("NVIDIA H100 80GB HBM3") == DEVICES["h100"]
    assert reported_device("NVIDIA L40S") == DEVICES["l40s"]
    for slower in ("NVIDIA H100 PCIe", "NVIDIA A10G", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "Tesla T4"):
        assert reported_device(slower) is None


def test_compute_is_spent_best_on_20_tokens_a_parameter() -> None:
    parameters, tokens = compute_optimal(5.76e23)  # Chinchilla's own budget: 70B parameters on 1.4T tokens
    assert parameters == pytest.approx(70e9, rel=0.05)
    assert tokens == pytest.approx(1.4e12, rel=0.05)


@pytest.mark.parametrize(
    ("ratio", "word"),
    [(1.7, "under-trained"), (20, "compute-optimal"), (149, "over-trained, as models for inference"), (5000, "beyond")],
)
def test_the_ratio_is_judged_beside_known_models(ratio: float, word: str) -> None:
    shape = llama_7b()
    assert judge_ratio(shape, int(ratio * count_parameters(shape))).startswith(("over-trained " + word, word))


def test_the_cheapest_change_with_which_it_fits_is_told() -> None:
    shape = derive(ModelConfig(depth=24, context=2048), 32_000)
    setup = Setup(engine="ddp", micro_batch=16)
    need = training_memory(shape, setup).total
    assert ways_to_fit(shape, setup, need) == setup
    selective = ways_to_fit(shape, setup, need - 1)
    assert selective is not None
    assert changes(setup, selective) == {"recompute": "selective"}
    least = ways_to_fit(shape, setup, training_memory(shape, Setup(engine="ddp", recompute="full")).total)
    assert least is not None
    assert changes(setup, least) == {"recompute": "full", "micro_batch": 1}
    assert least.micro_steps == 16  # the global batch stays
    assert ways_to_fit(shape, setup, 10**6) is None
    away = ways_to_fit(shape, Setup(), training_memory(shape, Setup(recompute="full")).total // 2)
    assert away is not None
    assert changes(Setup(), away) == {"zero_stage": 2, "recompute": "full", "offload": "optimizer"}


def test_shards_are_told_where_there_are_devices_to_share_them() -> None:
    setup = Setup(devices=64, recompute="full")
    found = ways_to_fit(llama_7b(), setup, 80 * 10**9)
    assert found is not None
    assert changes(setup, found) == {"zero_stage": 1}
    wider = ways_to_fit(llama_7b(), Setup(cuda=False, precision="float32"), 80 * 10**9)
    assert wider is not None
    assert (wider.zero_stage, wider.devices) == (3, 4)


def test_what_is_told_is_what_an_engine_takes() -> None:
    for setup in (
        Setup(engine="fsdp", devices=8, recompute="full"),
        Setup(engine="ddp", devices=8, recompute="full"),
        Setup(engine="fsdp"),
        Setup(zero_stage=0),
        Setup(engine="ddp", devices=4),
    ):
        for memory in (int(training_memory(llama_7b(), setup).total * share) for share in (0.9, 0.5, 0.2)):
            found = ways_to_fit(llama_7b(), setup, memory)
            assert found is not None
            check_engine(runtime_of(engine=found.engine, zero_stage=found.zero_stage, offload=found.offload).pretrain)
            assert training_memory(llama_7b(), found).total <= memory
    again = ways_to_fit(llama_7b(), setup := Setup(engine="fsdp", devices=8, recompute="full"), 20 * 10**9)
    assert again is not None
    assert changes(setup, again) == {"zero_stage": 3}
    shared = ways_to_fit(llama_7b(), setup := Setup(engine="ddp", devices=8, recompute="full"), 40 * 10**9)
    assert shared is not None
    assert changes(setup, shared) == {"engine": "fsdp", "zero_stage": 3}
    for engine in ("ddp", "deepspeed"):  # ZeRO can't train by Muon
        by_muon = ways_to_fit(llama_7b(), setup := Setup(engine=engine, devices=8, optimizer="muon"), 40 * 10**9)
        assert by_muon is not None
        assert changes(setup, by_muon).items() >= {"engine": "fsdp", "zero_stage": 3}.items()
