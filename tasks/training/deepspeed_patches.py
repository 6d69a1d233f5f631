"""What every training with DeepSpeed asks of it beyond its settings."""

from __future__ import annotations

from typing import Any


def decline_shared_memory_operator() -> None:
    """Before DeepSpeed starts: it would compile an operator for shared memory (75 s of CPU) that only its inference
    uses. Its table of compatible operators is meant to be edited."""
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def float32_sums(zero_stage: int) -> dict[str, Any]:
    """The settings by which gradients of stages 2 and 3, and those that ranks exchange at any stage, are summed in
    float32. In bfloat16 the sum of 64 micro-batches is wrong by 1 %."""
    return {"data_types": {"grad_accum_dtype": "fp32" if zero_stage > 1 else None}, "communication_data_type": "fp32"}


def sum_in_float32(zero: Any) -> None:
    """What the settings can't ask of stage 1's optimizer, before its first step: with them DeepSpeed takes another one,
    whose checkpoints can't be converted."""
    import torch

    zero.gradient_accumulation_dtype = torch.float32
    zero.use_separate_grad_accum = zero.use_grad_accum_attribute = zero.dtype != torch.float32
