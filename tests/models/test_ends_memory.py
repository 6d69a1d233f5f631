"""Memory at the start and the end of a run, by hand: LLaMA 2 70B on 64 GPUs of 80 GB, eight to a host."""

from __future__ import annotations

import pytest

from models.config import ModelConfig
from models.fit import ways_to_fit
from models.memory import Setup, largest_parameter, memory_of_ends, most_memory, training_memory
from models.presets import count_parameters, derive

LLAMA_70B = derive(
    ModelConfig(depth=80, width=8192, heads=64, kv_heads=8, feed_forward=28_672, context=4096, tie_embeddings=False),
    32_000,
)
# Embedding and head 2 × 32,000 × 8,192; of each of 80 blocks q and output 2 × 8,192², k and v 2 × 8,192 × 1,024, three
# matrices of 8,192 × 28,672, two norms; the last norm. The sum is what Meta's model has
P = 2 * 32_000 * 8_192 + 80 * (2 * 8_192**2 + 2 * 8_192 * 1_024 + 3 * 8_192 * 28_672 + 2 * 8_192) + 8_192
GATE_AND_UP = 2 * 8_192 * 28_672  # fused, the largest parameter: 470 million numbers
N = 64


def of(engine: str, stage: int = 0, **more: object) -> Setup:
    asked = {"engine": engine, "zero_stage": stage, "devices": N, "recompute": "full", **more}
    return Setup(**asked)  # type: ignore[arg-type]


def close(number: int, expected: float) -> bool:
    return number == pytest.approx(expected, rel=1e-6)


def test_the_model_is_metas() -> None:
    assert P == count_parameters(LLAMA_70B) == 68_976_648_192
    assert largest_parameter(LLAMA_70B) == GATE_AND_UP


def test_zero_2_can_train_what_it_cannot_start() -> None:
    # On 1,024 GPUs each holds 2 bytes a parameter and 16/1,024 in training, but all 4 of a float32 model at the start
    told = memory_of_ends(LLAMA_70B, of("deepspeed", 2, devices=1024))
    assert close(told.start.device, 4 * P)  # 276 GB
    training = training_memory(LLAMA_70B, of("deepspeed", 2, devices=1024))
    assert close(training.weights + training.gradients + training.optimizer, 2 * P + 16 * P / 1024)  # 139 GB
    assert most_memory(LLAMA_70B, of("deepspeed", 2, devices=1024)) == 4 * P > training.total


def test_zero_1_and_2_read_all_weights_on_each_rank() -> None:
    for stage in (1, 2):
        told = memory_of_ends(LLAMA_70B, of("deepspeed", stage))
        assert close(told.start.device, 4 * P)
        # 16-bit weights, and this rank's masters and moments: 151 GB for each of the eight ranks of a host
        assert close(told.resume.host, 2 * P + 12 * P / N)
        assert close(told.start.host, 4 * GATE_AND_UP)


def test_zero_3_starts_and_ends_in_its_shards() -> None:
    told = memory_of_ends(LLAMA_70B, of("deepspeed", 3))
    # Weights 2, masters 4, gradients 4 (float32, or 4 of a billion at a time) over 64; a bucket of a quarter billion
    shards = (2 + 4) * P / N + max(4 * P / N, 4 * min(P / N, 1e9))
    assert close(told.start.device, shards + 4 * 250_000_000)  # 11.8 GB
    assert close(told.resume.host, 12 * P / N)  # 13 GB
    # A gathered matrix in 16 bits beside weights 2, gradients 4, masters and moments 12
    assert close(told.end.device, 18 * P / N + 2 * GATE_AND_UP)  # 20.3 GB
    assert close(told.end.first, 8 * P)  # in our form and in that of transformers: 552 GB on one host
    assert most_memory(LLAMA_70B, of("deepspeed", 3)) == training_memory(LLAMA_70B, of("deepspeed", 3)).total < 80e9


def test_fsdp_draws_and_gathers_a_parameter_at_a_time() -> None:
    told = memory_of_ends(LLAMA_70B, of("fsdp", 3))
    assert close(told.start.device, 4 * P / N)  # 4.3 GB
    assert close(told.start.host, 4 * GATE_AND_UP + 4 * GATE_AND_UP / N)  # 1.9 GB, and the shard that is cut from it
    assert close(told.resume.device, 12 * P / N)
    assert close(told.end.device, 12 * P / N + 4 * GATE_AND_UP)  # 14.8 GB
    away = memory_of_ends(LLAMA_70B, of("fsdp", 3, offload="optimizer"))
    assert away.start.device == 0
    assert close(away.start.host - told.start.host, 4 * P / N)
    copied = training_memory(LLAMA_70B, of("fsdp", 3, copies_states=True))
    assert close(copied.host, 12 * P / N)  # of an asynchronous checkpoint


def test_ddp_holds_all_from_the_first_moment() -> None:
    told = memory_of_ends(LLAMA_70B, of("ddp"))
    assert close(told.start.device, 4 * P + 4 * P)  # and the buckets of its gradients
    assert close(told.end.device, (4 + 4 + 8) * P)
    split = memory_of_ends(LLAMA_70B, of("ddp", tensor_parallel=8, pipeline_parallel=8))
    assert split.start.device < 1.1 * 4 * P / N
    assert split.start.host < 2 * 4 * GATE_AND_UP


def test_on_a_cpu_what_ranks_need_is_of_the_same_memory() -> None:
    gpu, cpu = (memory_of_ends(LLAMA_70B, of("fsdp", 3, cuda=cuda)) for cuda in (True, False))
    assert cpu.start.device == gpu.start.device + gpu.start.host
    assert (cpu.start.host, cpu.end.first) == (0, gpu.end.first)


def test_a_way_to_fit_can_also_be_started() -> None:
    found = ways_to_fit(LLAMA_70B, of("deepspeed", 1), 80 * 10**9)
    assert found is not None
    assert found.zero_stage == 3
