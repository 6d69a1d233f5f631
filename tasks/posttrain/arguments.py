"""The training arguments shared by all methods: batch, schedule, precision, checkpoints."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import torch

from tasks.children.devices import device_of
from tasks.posttrain.batches import training_steps, validation_interval
from tasks.posttrain.check import MEASURED_ROWS, row_share
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.engines import engine_arguments
from tasks.posttrain.spec import PosttrainSpec
from tasks.stage.runtime import Runtime

WHOLE_CHECKPOINTS = 2  # the previous one must stay while the newest is being written


# Fields of TRL's and transformers' configs that change a loss and that no setting of ours controls. Their values are
# those of the methods' papers. Each is set explicitly, so that a later version's defaults change nothing.
FIXED: dict[str, Any] = {
    "router_aux_loss_coef": 0.0,  # a mixture's auxiliary loss is computed per micro-batch and added to the token loss
    "label_smoothing_factor": 0.0,
    "neftune_noise_alpha": None,  # conversations/noise.py has our own NEFTune
    "average_tokens_across_devices": True,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "lr_scheduler_kwargs": None,
    "use_liger_kernel": False,
    "auto_find_batch_size": False,
    "chat_template_path": None,
    # of SFT
    "loss_type": "nll",
    "completion_only_loss": False,
    "assistant_only_loss": False,
    "packing": False,
    "padding_free": False,
    "eos_token": None,
    # of DPO, KTO
    "f_divergence_type": "reverse_kl",
    "ld_alpha": None,
    "loss_weights": None,
    "use_weighting": False,
    "sync_ref_model": False,
    # of GRPO
    "delta": None,
    "multi_objective_aggregation": "sum_then_normalize",
    "off_policy_mask_threshold": None,
    "top_entropy_quantile": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "use_bias_correction_kl": True,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "use_vllm": False,
}


def arguments_of(kind: type[Any], arguments: Mapping[str, Any], **settings: Any) -> Any:
    """A config of a `kind` of TRL's or transformers', from `arguments`, `settings`, and those of FIXED that it has."""
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{**{name: value for name, value in FIXED.items() if name in names}, **arguments, **settings})


def uses_cuda(runtime: Runtime) -> bool:
    """Whether the model is trained on a GPU."""
    return device_of(runtime.compute).type == "cuda"


def uses_bfloat16(config: PosttrainConfig, runtime: Runtime) -> bool:
    """Whether matrix products are in bfloat16, under autocast."""
    return bfloat16_for(config.precision, runtime)


def bfloat16_for(precision: str, runtime: Runtime) -> bool:
    """Whether a `precision` means bfloat16 on this machine."""
    automatic = precision == "auto" and uses_cuda(runtime)
    return precision == "bfloat16" or (automatic and torch.cuda.is_bf16_supported(including_emulation=False))


def training_arguments(spec: PosttrainSpec, config: PosttrainConfig, rows: int, held_out: int) -> dict[str, Any]:
    """Keyword arguments for TRL's config classes, given the numbers of rows to train on and held out.

    Raises ConfigError if the processes can't share the global batch evenly.
    """
    runtime = spec.runtime
    cuda = uses_cuda(runtime)
    share = row_share(spec.method, config, runtime, int(os.environ.get("WORLD_SIZE", "1")))
    steps = training_steps(config, rows)
    return {
        "output_dir": str(spec.checkpoints),
        "max_steps": steps,
        "train_sampling_strategy": "sequential",  # batches.py has already put the rows in the order of training
        "per_device_train_batch_size": share.micro_batch,
        "per_device_eval_batch_size": MEASURED_ROWS,
        "gradient_accumulation_steps": share.micro_steps,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": round(config.warmup_share * steps),
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.gradient_clip,
        "seed": config.seed,
        "data_seed": config.seed,
        "bf16": uses_bfloat16(config, runtime),
        "use_cpu": not cuda,
        "optim": "adamw_torch_fused",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # it would replace a NaN by a plausible loss
        "eval_strategy": "steps" if held_out else "no",  # always at the last step too
        "eval_steps": validation_interval(config, rows),
        "save_steps": runtime.training.checkpoint_every,
        "save_total_limit": max(WHOLE_CHECKPOINTS, runtime.training.keep_checkpoints),
        "report_to": [],
        "disable_tqdm": True,
        **engine_arguments(runtime.posttrain, cpu=not cuda),
    }
