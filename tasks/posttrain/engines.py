"""Spreads a model of TRL's trainers over processes: by torch's DDP, DeepSpeed's ZeRO or torch's FSDP2.

An engine changes how a step is computed, never what: losses are the same but for the rounding of sums. check.py refuses
settings that an engine can't honour, before anything starts. This module refuses a trainer that ended up on an engine
other than the requested one: accelerate falls back to DDP silently. Every engine sums the gradients of micro-batches,
and of ranks, in float32. By default DeepSpeed and accelerate's FSDP would sum in bfloat16.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from models.memory import REDUCE_BUCKET
from storage.errors import ConfigError
from tasks.stage.runtime import PosttrainRuntime
from tasks.training.deepspeed_patches import decline_shared_memory_operator, float32_sums, sum_in_float32

if TYPE_CHECKING:
    from transformers import Trainer

# The trainer fills in the batch sizes and the clipping
_DEEPSPEED_AUTO = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
)


def engine_arguments(runtime: PosttrainRuntime, *, cpu: bool) -> dict[str, Any]:
    """TrainingArguments for the engine, its recomputation of activations and torch.compile."""
    recompute = runtime.recompute == "full"
    if runtime.engine == "fsdp":
        # FSDP's own recomputation: the model's would gather weights once more (transformers' documentation)
        settings = {"reshard_after_forward": runtime.zero_stage == 3, "activation_checkpointing": recompute}
        arguments: dict[str, Any] = {"fsdp": True, "fsdp_config": settings, "gradient_checkpointing": False}
        if cpu:
            _join_for_fsdp_on_cpu()
            arguments["accelerator_config"] = {"use_configured_state": True}
        return arguments
    arguments = {"gradient_checkpointing": recompute, "torch_compile": runtime.compile != "off"}
    if runtime.engine == "deepspeed":
        decline_shared_memory_operator()
        arguments["deepspeed"] = _deepspeed(runtime)
    return arguments


def _deepspeed(runtime: PosttrainRuntime) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": runtime.zero_stage,
        "reduce_bucket_size": REDUCE_BUCKET,
        "stage3_gather_16bit_weights_on_model_save": True,
    }
    if runtime.offload == "optimizer":
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        **dict.fromkeys(_DEEPSPEED_AUTO, "auto"),
        "bf16": {"enabled": "auto"},
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,  # DeepSpeed's own Adam would have to be compiled
        **float32_sums(runtime.zero_stage),
    }


def sum_gradients_in_float32(trainer: Trainer, runtime: PosttrainRuntime) -> None:
    """Set float32 sums where no argument does. To be called before the trainer divides its model."""
    if runtime.engine == "fsdp":
        plugin = trainer.accelerator.state.fsdp_plugin
        if plugin.mixed_precision_policy is not None:
            plugin.mixed_precision_policy = replace(plugin.mixed_precision_policy, reduce_dtype=torch.float32)
    elif runtime.engine == "deepspeed" and runtime.zero_stage == 1:
        trainer.add_callback(_Float32Sums())


class _Float32Sums(TrainerCallback):
    """Sets up the optimizer of ZeRO 1, which exists only once the training begins."""

    def on_train_begin(self, args: Any, state: Any, control: Any, *, optimizer: Any, **_: Any) -> None:
        """Set it up: the trainer is on its engine now."""
        sum_in_float32(optimizer.optimizer)


def _join_for_fsdp_on_cpu() -> None:
    """Join the process group under a device type that accelerate lets FSDP use.

    accelerate 1.15 shards on accelerators only and otherwise falls back to DDP, though FSDP2 itself runs over gloo.
    """
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    state = PartialState(cpu=True)
    if state.distributed_type == DistributedType.MULTI_CPU:
        state.distributed_type = DistributedType.MULTI_XPU


def check_engine(trainer: Trainer, runtime: PosttrainRuntime) -> None:
    """Raises ConfigError if the trainer uses another engine than the requested one."""
    in_use = "deepspeed" if trainer.is_deepspeed_enabled else "fsdp" if trainer.is_fsdp_enabled else "ddp"
    if in_use == "fsdp" and trainer.accelerator.distributed_type != "FSDP":
        in_use = "ddp"
    if in_use != runtime.engine:
        raise ConfigError(
            f"runtime.posttrain.engine is {runtime.engine}, but the trainer uses {in_use} on this machine.",
            f"Set runtime.posttrain.engine to {in_use}, or train on another machine.",
        )
