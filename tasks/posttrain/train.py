"""The child of `sft` and `dpo`: `python -m tasks.posttrain.train SPEC`, once a rank."""

from __future__ import annotations

import functools
import json
import math
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from models.tokenizer import copy_tokenizer, load_tokenizer
from storage.errors import ConfigError
from tasks.children.child import run_as_child
from tasks.posttrain.callback import Watch, latest_checkpoint
from tasks.posttrain.methods.dpo import DpoConfig
from tasks.posttrain.methods.sft import SftConfig
from tasks.posttrain.rows import rendering as rows
from tasks.posttrain.spec import PosttrainSpec
from tasks.training.logs import cut_log

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast, Trainer

MICRO_BATCH = 16  # pairs of a forward pass, where the runtime gives no micro_batch
MEASURED_PAIRS = 8  # of a forward pass in validation: a mean of batch means depends on it, so no runtime decides it


def train(path: Path) -> None:
    """Train as the spec says, from the last checkpoint if there is one; rank 0 leaves the model and the result."""
    spec = PosttrainSpec.model_validate_json(path.read_text())
    torch.set_num_threads(spec.runtime.compute.threads)
    tokenizer = load_tokenizer(spec.model)
    model = _load(spec.model)
    render = rows.render_instruction if spec.method == "sft" else rows.render_preference
    chosen, held_out, dropped = rows.prepare(
        rows.read_rows(spec.rows),
        functools.partial(render, tokenizer=tokenizer, max_length=_max_length(spec, model)),
        validation_share=spec.config.validation_share,
        max_dropped_share=spec.config.max_dropped_share,
    )
    watch = Watch(spec)
    trainer = _trainer(spec, model, tokenizer, chosen, held_out, watch)
    checkpoint, begun = latest_checkpoint(spec) if trainer.is_world_process_zero() else (None, 0)
    if trainer.args.world_size > 1:
        found = [(checkpoint, begun)]
        torch.distributed.broadcast_object_list(found)
        ((checkpoint, begun),) = found
    if trainer.is_world_process_zero():
        cut_log(spec.log, begun)
    started = time.perf_counter()
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    seconds = time.perf_counter() - started
    if trainer.is_world_process_zero():
        watch.flush()
    measured = trainer.evaluate() if held_out else {}
    _save(trainer, spec)
    if trainer.is_world_process_zero():
        result = {
            "pairs": len(chosen) + len(held_out) + dropped.total(),
            "train": len(chosen),
            "validation": len(held_out),
            "dropped": dict(sorted(dropped.items())),
            "supervised_share": _supervised_share(chosen),
            "measured": measured,
            "facts": {
                "training_seconds": round(seconds, 2),
                "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "resumed_from_step": begun,
            },
        }
        spec.result.write_text(json.dumps(result))
    if trainer.args.world_size > 1:  # a rank that exits first can take gloo's threads down with an abort
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def _load(folder: Path) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)


def _max_length(spec: PosttrainSpec, model: PreTrainedModel) -> int:
    context = int(model.config.max_position_embeddings)
    asked = spec.config.max_length or context
    if asked > context:
        raise ConfigError(
            f"{spec.method}.max_length is {asked}, but the model's context is {context}.",
            f"Lower it, or raise pretrain.model.context to {asked}.",
        )
    return asked


def _trainer(
    spec: PosttrainSpec,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    chosen: list[rows.Row],
    held_out: list[rows.Row],
    watch: Watch,
) -> Trainer:
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import DPOConfig as TrlDpoConfig
    from trl import DPOTrainer, SFTTrainer
    from trl import SFTConfig as TrlSftConfig

    data: dict[str, Any] = {
        "train_dataset": Dataset.from_list(chosen),
        "eval_dataset": Dataset.from_list(held_out) if held_out else None,
        "processing_class": tokenizer,
        "callbacks": [watch],
    }
    arguments = _arguments(spec, len(chosen))
    trainer: Trainer
    if isinstance(spec.config, DpoConfig):
        # Rows are known to fit, so TRL's own truncation is off
        loss = {"beta": spec.config.beta, "loss_type": [spec.config.loss], "max_length": None}
        reference = _load(spec.model)
        trainer = DPOTrainer(model=model, ref_model=reference, args=TrlDpoConfig(**arguments, **loss), **data)
    else:
        assert isinstance(spec.config, SftConfig)
        trainer = SFTTrainer(model=model, args=TrlSftConfig(**arguments, max_length=None, packing=False), **data)
    trainer.remove_callback(PrinterCallback)
    return trainer


def _arguments(spec: PosttrainSpec, pairs: int) -> dict[str, Any]:
    config, runtime = spec.config, spec.runtime
    cuda = runtime.compute.device == "cuda" or (runtime.compute.device == "auto" and torch.cuda.is_available())
    world = int(os.environ.get("WORLD_SIZE", "1"))
    share, left = divmod(config.global_batch, world)
    micro = runtime.posttrain.micro_batch or math.gcd(share, MICRO_BATCH)
    if left or share % micro:
        raise ConfigError(
            f"{spec.method}.global_batch is {config.global_batch}, which {world} processes can't share evenly "
            f"with a runtime.posttrain.micro_batch of {micro}.",
            "Choose a global batch that is a multiple of processes × micro_batch.",
        )
    steps = max(1, math.ceil(config.epochs * pairs / config.global_batch))
    bfloat16 = config.precision == "bfloat16" or (
        config.precision == "auto" and cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    )
    arguments: dict[str, Any] = {
        "output_dir": str(spec.checkpoints),
        "max_steps": steps,
        "per_device_train_batch_size": micro,
        "per_device_eval_batch_size": MEASURED_PAIRS,
        "gradient_accumulation_steps": share // micro,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": round(config.warmup_share * steps),
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.gradient_clip,
        "seed": config.seed,
        "data_seed": config.seed,
        "bf16": bfloat16,
        "use_cpu": not cuda,
        "optim": "adamw_torch_fused",
        "gradient_checkpointing": runtime.posttrain.recompute != "none",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # it would show a plausible loss in place of a NaN
        "save_steps": runtime.training.checkpoint_every,
        "save_total_limit": 2,
        "report_to": [],
        "disable_tqdm": True,
    }
    if runtime.posttrain.zero_stage:
        arguments["deepspeed"] = _deepspeed(runtime.posttrain.zero_stage)
    return arguments


def _deepspeed(stage: int) -> dict[str, Any]:
    """A config whose every other number the trainer fills in."""
    numbers = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    return {
        **dict.fromkeys(numbers, "auto"),
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True},
    }


def _save(trainer: Trainer, spec: PosttrainSpec) -> None:
    """The whole model as safetensors with the tokenizer's own files: no pickled arguments, no times."""
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if trainer.is_world_process_zero():
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        model.config.use_cache = True  # off during training, and it would be saved so
        model.save_pretrained(spec.out / "model", state_dict=state)
        copy_tokenizer(spec.model, spec.out / "model")
        (spec.out / "log.jsonl").write_bytes(spec.log.read_bytes())


def _supervised_share(chosen: list[rows.Row]) -> float:
    """Tokens that bear loss, of all: 1 for preference pairs, whose prompts bear none in either loss."""
    if "labels" not in chosen[0]:
        return 1.0
    learned = sum(label != rows.IGNORED for row in chosen for label in row["labels"])
    return learned / sum(len(row["labels"]) for row in chosen)


if __name__ == "__main__":
    run_as_child(train)
