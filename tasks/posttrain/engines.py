"""Spreads a model of TRL's trainers over processes: by torch's DDP, DeepSpeed's ZeRO or torch's FSDP2.

An engine changes how a step is computed, never what: losses are the same but for the rounding of sums. check.py refuses
settings that an engine can't honour, before anything starts. This module refuses a trainer that ended up on an engine
other than the requested one: accelerate falls back to DDP silently. Every engine sums the gradients of micro-batches,
and of ranks, in float32. By default DeepSpeed and accelerate's FSDP would sum in bfloat16.

Under FSDP and ZeRO 3 no rank holds a whole model at the start. Libraries get one whose weights are not read yet. They
are read a tensor at a time, and each rank keeps its part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from models.memory import REDUCE_BUCKET
from models.pretrained import allocate_pretrained, load_pretrained, weights_for
from storage.errors import ConfigError
from tasks.stage.runtime import PosttrainRuntime
from tasks.training.deepspeed_patches import Partition, decline_shared_memory_operator, float32_sums, sum_in_float32

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer

# What an adapter and FSDP's recomputation add to the names of weights
ADDED = (
    "base_model.model.",
    "base_layer.",
    "original_module.",
    "modules_to_save.default.",
    "_checkpoint_wrapped_module.",
)
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


def divides(runtime: PosttrainRuntime) -> bool:
    """Whether the engine divides the weights of a model over its ranks."""
    return runtime.engine == "fsdp" or runtime.zero_stage == 3


def load_frozen(folder: Path, runtime: PosttrainRuntime, *, bfloat16: bool) -> PreTrainedModel:
    """A model that isn't trained, such as a reference: whole, or divided as the engine does it. To be called once the
    ranks have met, which they do when training arguments are made."""
    if not divides(runtime):
        return load_pretrained(folder)
    model = allocate_pretrained(folder)
    divide_frozen(model, folder, runtime, bfloat16=bfloat16)
    return model


def divide_frozen(model: PreTrainedModel, folder: Path, runtime: PosttrainRuntime, *, bfloat16: bool) -> None:
    """Divide a model that isn't trained and whose weights are still in the folder."""
    if runtime.engine == "deepspeed":
        _partition(model, folder, bfloat16=bfloat16)
        return
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    lower = torch.bfloat16 if bfloat16 else None
    weights = weights_for(model, folder)
    for part in (*(one for one in model.modules() if type(one).__name__ in (model._no_split_modules or ())), model):
        fully_shard(
            part, mp_policy=MixedPrecisionPolicy(param_dtype=lower, output_dtype=lower), reshard_after_forward=True
        )
    _fill_shards(model, weights)


def callable_beside(trainer: Trainer, model: Any) -> Any:
    """A model of `load_frozen` as it can be called along with the trainer's, on its device."""
    if trainer.is_deepspeed_enabled and hasattr(next(model.parameters()), "ds_id"):
        from trl.models.utils import prepare_deepspeed

        return prepare_deepspeed(model, trainer.accelerator)
    return model if trainer.is_fsdp_enabled else model.to(trainer.args.device)


@contextmanager
def whole_weights(model: Any) -> Iterator[None]:
    """Gives each rank the whole weights of a model that FSDP has divided, so that ranks sample answers of other numbers
    and lengths without meeting."""
    from torch.distributed.fsdp import FSDPModule

    divided: list[Any] = [part for part in model.modules() if isinstance(part, FSDPModule)]
    states = [part._get_fsdp_state() for part in divided]
    for state in states[:1]:
        state._lazy_init()  # as the first forward pass of the whole would: PEFT samples with a part of it
    reshards = [any(group._reshard_after_forward for group in state._fsdp_param_groups) for state in states]
    for part in divided:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part, reshard in zip(divided, reshards, strict=True):
            part.set_reshard_after_forward(reshard, recurse=False)
            part.reshard()


def read_weights(trainer: Trainer, folder: Path, *, bfloat16: bool, critic: Path | None = None) -> None:
    """Have the trainer's model, whose weights are still in the folder, divided and read: at once for ZeRO 3, and for
    FSDP when the trainer divides it. `critic` is the folder of the critic beside it, if any."""
    if trainer.is_deepspeed_enabled:
        _partition(trainer.model, folder, bfloat16=bfloat16)
        return
    weights, prepare = weights_for(_bare(trainer.model), folder), trainer.accelerator.prepare
    if critic is not None:
        of_critic = weights_for(trainer.model.critic, critic)
        weights = chain(weights, ((f"critic.{name}", value) for name, value in of_critic))

    def prepare_and_fill(*parts: Any, **settings: Any) -> Any:
        prepared = prepare(*parts, **settings)
        if any(part is trainer.model for part in parts):
            _fill_shards(trainer.model, weights)
            trainer.accelerator.prepare = prepare
        return prepared

    trainer.accelerator.prepare = prepare_and_fill


@torch.no_grad()
def _partition(model: Any, folder: Path, *, bfloat16: bool) -> None:
    """Divide a model for ZeRO 3 as its weights are read, those that are in no file last."""
    import deepspeed

    partition, dtype = Partition(), torch.bfloat16 if bfloat16 else torch.float32
    done: set[int] = set()
    for parameters, magnitudes, value in _of_parameters(model, weights_for(_bare(model), folder)):
        if magnitudes is not None:
            magnitudes.copy_(_magnitudes(model, value))
        for parameter in parameters:
            partition.add(parameter, value.to(dtype))
            done.add(id(parameter))
    for parameter in model.parameters():
        if id(parameter) not in done:
            partition.add(parameter, parameter.data.to(dtype))
    for buffer in model.buffers():
        buffer.data = buffer.data.to(deepspeed.get_accelerator().current_device_name())


@torch.no_grad()
def _fill_shards(model: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Read the weights of a model that FSDP has divided."""
    for parameters, magnitudes, value in _of_parameters(model, weights):
        for parameter in parameters:
            put(parameter, value)
        if magnitudes is not None:
            put(magnitudes, _magnitudes(model, value))


@torch.no_grad()
def put(parameter: Any, value: Tensor) -> None:
    """Set a parameter, or this rank's part of one that FSDP has divided."""
    if not isinstance(parameter.data, DTensor):
        parameter.copy_(value)
        return
    held, mesh = parameter.to_local(), parameter.device_mesh
    share = -(-len(value) // mesh.size())  # rounded up, as fully_shard does: the last rank may have fewer rows
    start = min(mesh.get_local_rank() * share, len(value))
    held.copy_(value[start : start + len(held)])


def whole(parameter: Any) -> Tensor:
    """A parameter, gathered if FSDP has divided it."""
    found: Tensor = parameter.full_tensor() if isinstance(parameter.data, DTensor) else parameter
    return found


def _of_parameters(model: Any, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[list[Any], Any, Tensor]]:
    """Each weight with its parameters, which are two if it is trained whole beside an adapter, and that of DoRA's
    magnitudes for it, if any. Their names are compared without what an adapter and FSDP's recomputation add."""

    def stored(name: str) -> str:
        for added in ADDED:
            name = name.replace(added, "")
        return name

    buffers = {stored(name) for name, _ in model.named_buffers()}
    parameters: dict[str, list[Any]] = {}
    for name, one in model.named_parameters(remove_duplicate=False):
        parameters.setdefault(stored(name), []).append(one)
    for name, value in weights:
        if name not in buffers:
            magnitudes = parameters.get(f"{name.removesuffix('weight')}lora_magnitude_vector.default.weight", [None])
            yield parameters[name], magnitudes[0], value


def _bare(model: Any) -> Any:
    """The model without its adapter."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def _magnitudes(model: Any, value: Tensor) -> Tensor:
    """DoRA's first magnitudes for a weight: the norm of each row (Liu et al. 2024)."""
    transposed = model.peft_config["default"].fan_in_fan_out  # GPT-2's layers
    return torch.linalg.norm((value.T if transposed else value).float(), dim=1)
