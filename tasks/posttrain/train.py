"""The child of every post-training stage: `python -m tasks.posttrain.train SPEC`, once per rank."""

from __future__ import annotations

import functools
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from models.kernels.attention import for_any_shape
from models.pretrained import allocate_pretrained, context_of, load_pretrained
from models.tokenizer import copy_tokenizer, load_tokenizer
from tasks.children.child import emit, run_as_child
from tasks.children.devices import own_device
from tasks.posttrain.arguments import training_arguments, uses_bfloat16, uses_cuda
from tasks.posttrain.attention.context import share_context
from tasks.posttrain.batches import training_order
from tasks.posttrain.callback import LogCallback
from tasks.posttrain.checkpoints import latest_checkpoint
from tasks.posttrain.config import PosttrainConfig, max_length_of
from tasks.posttrain.engines import check_engine, divides, load_frozen, read_weights, sum_gradients_in_float32
from tasks.posttrain.method import Method, Trained, TrainerParts
from tasks.posttrain.methods import METHODS
from tasks.posttrain.pair_lengths import render_rows
from tasks.posttrain.reference.table import with_reference
from tasks.posttrain.rows.form import Row, mean_tokens
from tasks.posttrain.spec import PosttrainSpec
from tasks.training.adapters.lora import peft_config
from tasks.training.adapters.quantized import as_rounded, load_nf4, train_in_float32
from tasks.training.adapters.save import merge, proof_batches, save_adapter
from tasks.training.adapters.virtual import begin_as_text, save_beside
from tasks.training.adapters.whole import tie_copies
from tasks.training.checkpoint_marker import resumed_note
from tasks.training.device_peak import peak_memory
from tasks.training.logs import cut_log
from tasks.training.recovery.lost_host import hosts_named
from tasks.training.recovery.out_of_memory import memory_named
from tasks.training.states_only import refusing_code, states_only

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast, Trainer

# Fewer rows in a forward pass, and recomputation, have been tried by less_memory.py
LESS_MEMORY = "Shard over more processes (runtime.posttrain.engine), or lower max_length."


@for_any_shape()
def train(path: Path) -> None:
    """Train as the spec says, from the last checkpoint if any. Rank 0 writes the model and the result."""
    spec = PosttrainSpec.model_validate_json(path.read_text())
    method = METHODS[spec.method]
    config = method.config.model_validate(spec.config)
    own_device(spec.runtime.compute)
    torch.set_num_threads(spec.runtime.rank_threads)
    tokenizer = load_tokenizer(spec.model)
    model = _load_model(spec, method, config)
    max_length = max_length_of(spec.method, config, context_of(model.config))
    split: Counter[str] = Counter()
    train_rows, held_out, dropped = render_rows(method, config, spec.rows, tokenizer, max_length, split)
    if spec.reference is not None:
        train_rows, held_out = (with_reference(rows, spec.reference) for rows in (train_rows, held_out))
    log = LogCallback(spec, method.measures_of(config), method.curve)
    trainer = _trainer(spec, method, config, model, tokenizer, train_rows, held_out, max_length, log)
    checkpoint, resumed_at = _resume_point(trainer, spec)
    trainer.args.eval_on_start = bool(held_out) and checkpoint is None
    started = time.perf_counter()
    with (
        memory_named(f"{spec.method}: memory ran out", LESS_MEMORY),
        hosts_named(spec.runtime.training),
        refusing_code(checkpoint or spec.checkpoints),
        states_only(deepspeed=trainer.is_deepspeed_enabled),
    ):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    seconds = time.perf_counter() - started
    if trainer.is_world_process_zero():
        log.flush()
    if not log.stopped:
        _finish(trainer, spec, method, config, (train_rows, held_out, dropped, split), log, seconds, resumed_at)
    if trainer.args.world_size > 1:  # a rank that exits first can take gloo's threads down with an abort
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def _load_model(spec: PosttrainSpec, method: Method[Any], config: PosttrainConfig) -> PreTrainedModel:
    """The starting model, in 4 bits if the adapter quantizes it. If the engine divides it, its weights are not read."""
    divided = divides(spec.runtime.posttrain)
    if method.load is not None:
        return method.load(spec.model, config, divided)
    if not config.quantized:
        return (allocate_pretrained if divided else load_pretrained)(spec.model)
    return load_nf4(spec.model, cuda=uses_cuda(spec.runtime), bfloat16=uses_bfloat16(config, spec.runtime))


def _finish(
    trainer: Trainer,
    spec: PosttrainSpec,
    method: Method[Any],
    config: PosttrainConfig,
    rows: tuple[list[Row], list[Row], Counter[str], Counter[str]],
    log: LogCallback,
    seconds: float,
    resumed_at: int,
) -> None:
    """Save the model and write the result."""
    train_rows, held_out, dropped, split = rows
    adapter = _save(trainer, spec, config)
    if trainer.is_world_process_zero():
        trained = Trained(spec.out / "model", train_rows, held_out, trainer.args.device)
        measured = method.conclude(trained) if method.conclude else {}
        result = {
            "pairs": len(train_rows) + len(held_out) - split["parts"] + split["rows"] + dropped.total(),
            "train": len(train_rows),
            "validation": len(held_out),
            "dropped": dict(sorted(dropped.items())),
            "max_length": max_length_of(spec.method, config, context_of(trainer.model.config)),
            "split": dict(split),
            "supervised_share": method.form(config).supervised_share(train_rows),
            "precision": "bfloat16" if trainer.args.bf16 else "float32",
            "adapter": adapter,
            "measured": measured,
            "held_out": log.change.result(),
            "facts": {
                "device": trainer.args.device.type,
                "training_seconds": round(seconds, 2),
                "peak_memory_bytes": peak_memory(trainer.args.device),
                "resumed_from_step": resumed_at,
                "tokens_a_pair": mean_tokens([*train_rows, *held_out]),
                **(method.facts(trainer) if method.facts else {}),
            },
        }
        spec.finish(result)


def _trainer(
    spec: PosttrainSpec,
    method: Method[Any],
    config: PosttrainConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    train_rows: list[Row],
    held_out: list[Row],
    max_length: int,
    log: LogCallback,
) -> Trainer:
    """The method's trainer, on the engine that the runtime names."""
    from datasets import Dataset
    from transformers import PrinterCallback

    common: dict[str, Any] = {
        "model": model,
        "train_dataset": Dataset.from_list(train_rows),
        "eval_dataset": Dataset.from_list(held_out) if held_out else None,
        "processing_class": tokenizer,
        "callbacks": [log],
    }
    if config.adapter is not None:
        common["peft_config"] = peft_config(spec.method, config.adapter, model)
    arguments = training_arguments(spec, config, len(train_rows), len(held_out))
    bfloat16, runtime = bool(arguments["bf16"]), spec.runtime.posttrain
    load_again = functools.partial(load_frozen, spec.model, runtime, bfloat16=bfloat16)
    parts = TrainerParts(
        config,
        spec.runtime,
        max_length,
        arguments,
        common,
        load_again,
        teacher=spec.teacher,
        top_tokens=spec.top_tokens,
        judge=spec.judge,
        digests=spec.digests,
        scratch=spec.scratch,
    )
    trainer = method.make_trainer(parts)
    tie_copies(trainer.model)
    if config.quantized:
        train_in_float32(trainer.model)
    if config.virtual_tokens:
        begin_as_text(trainer.model, config.seed)
    # To the trainer a whole run is one epoch: each of its own epochs would end with a whole step on a short batch
    trainer.train_dataset = trainer.train_dataset.select(training_order(config, len(train_rows)))
    check_engine(trainer, runtime)
    sum_gradients_in_float32(trainer, runtime)
    share_context(trainer, runtime)
    if divides(runtime):
        critic = spec.judge if hasattr(trainer.model, "critic") else None
        read_weights(trainer, spec.model, bfloat16=bfloat16, critic=critic)
    trainer.remove_callback(PrinterCallback)
    return trainer


def _resume_point(trainer: Trainer, spec: PosttrainSpec) -> tuple[Path | None, int]:
    """The checkpoint to resume from and its step, the same on every rank. Cuts the log back to it."""
    world = trainer.args.world_size
    latest = [latest_checkpoint(spec, world) if trainer.is_world_process_zero() else (None, 0)]
    if world > 1:
        torch.distributed.broadcast_object_list(latest)
    ((checkpoint, resumed_at),) = latest
    if trainer.is_world_process_zero():
        cut_log(spec.log, resumed_at)
        if resumed_at:
            emit(note=resumed_note(resumed_at))
    return checkpoint, resumed_at


def _save(trainer: Trainer, spec: PosttrainSpec, config: PosttrainConfig) -> dict[str, Any]:
    """Save the whole model as safetensors with the tokenizer's own files: no pickled arguments, no times. With an
    adapter, save adapter/, and the model with it: merged, or beside it. Returns the counts of the adapter.

    Gathering from FSDP copies a tied weight once per name. The copies are made one again, so that it is saved once.
    """
    from transformers.integrations import unset_hf_deepspeed_config

    accelerator = trainer.accelerator
    model = accelerator.unwrap_model(trainer.model_wrapped, keep_torch_compile=False)
    sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    state = accelerator.get_state_dict(trainer.model_wrapped) if sharded else model.state_dict()
    adapter: dict[str, Any] = {}
    if trainer.is_world_process_zero():
        unset_hf_deepspeed_config()  # while it is set, transformers loads models in shards over all processes
        if config.adapter is None:
            state |= {name: state[of] for name, of in model.all_tied_weights_keys.items()}
            model.config.use_cache = True  # it is off during training, and would be saved so
            model.save_pretrained(spec.out / "model", state_dict=state)
        else:
            folder, settings = spec.out / "adapter", model.peft_config["default"]
            save_adapter(settings, state, load_pretrained(spec.model), spec.base, folder)
            base = as_rounded(spec.model, model.get_base_model()) if config.quantized else load_pretrained(spec.model)
            if config.virtual_tokens:
                adapter = save_beside(base, folder, spec.out / "model", proof_batches(trainer))
            else:
                merged, adapter = merge(spec.method, base, folder, proof_batches(trainer))
                merged.save_pretrained(spec.out / "model")
        copy_tokenizer(spec.model, spec.out / "model")
        (spec.out / "log.jsonl").write_bytes(spec.log.read_bytes())
    return adapter


if __name__ == "__main__":
    run_as_child(train)
