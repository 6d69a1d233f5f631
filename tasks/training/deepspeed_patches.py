"""Changes to DeepSpeed that every training with it needs, and that its settings can't make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn


def decline_shared_memory_operator() -> None:
    """Keep DeepSpeed from compiling an operator for shared memory (75 s of CPU) that only its inference uses. To be
    called before DeepSpeed starts. Its table of compatible operators is meant to be edited."""
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def float32_sums(zero_stage: int) -> dict[str, Any]:
    """The settings that sum gradients in float32: those of stages 2 and 3, and those that ranks exchange at any stage.
    In bfloat16 the sum of 64 micro-batches is wrong by 1 %."""
    return {"data_types": {"grad_accum_dtype": "fp32" if zero_stage > 1 else None}, "communication_data_type": "fp32"}


def sum_in_float32(zero: Any) -> None:
    """Make stage 1's optimizer sum in float32. To be called before its first step. With the setting instead, DeepSpeed
    would use another optimizer, whose checkpoints can't be converted."""
    import torch

    zero.gradient_accumulation_dtype = torch.float32
    zero.use_separate_grad_accum = zero.use_grad_accum_attribute = zero.dtype != torch.float32


class Partition:
    """Divides parameters for stage 3, one at a time, so that no rank holds a whole model. DeepSpeed itself divides a
    model once it is whole."""

    def __init__(self) -> None:
        self._like: Any = None  # one that is divided already

    def add(self, parameter: nn.Parameter, values: Tensor) -> None:
        """Divide a parameter with these values. Every rank must call it with the same parameters in the same order.
        Rank 0's values are broadcast, in place."""
        import deepspeed
        import torch

        parameter.data = values
        if self._like is None:
            deepspeed.zero.Init(module=torch.nn.ParameterList([parameter]), dtype=values.dtype)
            self._like = parameter
        else:
            self._like.convert_to_zero_parameters(param_list=[parameter])
