"""The child of the stage `reference`: `python -m tasks.posttrain.reference.score SPEC`, once per rank.

The training's engine spreads the model, as it may not fit on one device. A batch has pairs of similar length, and
batches are the same for any number of processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models.kernels.attention import for_any_shape
from models.pretrained import allocate_pretrained, context_of, load_pretrained
from models.tokenizer import load_tokenizer, padding_id
from tasks.children.child import emit, run_as_child
from tasks.children.devices import own_device
from tasks.posttrain.arguments import bfloat16_for, uses_cuda
from tasks.posttrain.check import MEASURED_ROWS
from tasks.posttrain.config import max_length_of
from tasks.posttrain.engines import check_engine, divide_frozen, divides, engine_arguments
from tasks.posttrain.reference.stage import ReferenceSpec
from tasks.posttrain.reference.table import FILE, Key, key_of, write_reference
from tasks.posttrain.rows.form import Row
from tasks.posttrain.rows.preference import render_preference
from tasks.posttrain.rows.prepare import prepare, read_rows
from tasks.training.adapters.quantized import load_nf4
from tasks.training.device_peak import peak_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer


@for_any_shape()
def score(path: Path) -> None:
    """Measure the pairs as the spec says. Rank 0 writes the file and the result."""
    spec = ReferenceSpec.model_validate_json(path.read_text())
    own_device(spec.runtime.compute)
    torch.set_num_threads(spec.runtime.rank_threads)
    tokenizer = load_tokenizer(spec.model)
    model = _load_model(spec)
    max_length = max_length_of("dpo", spec.config, context_of(model.config))
    rows, _, dropped = prepare(
        read_rows(spec.rows),
        lambda row, length: render_preference(row, tokenizer, length),
        max_length,
        validation_share=0.0,
        max_dropped_share=1.0,  # the training checks the limit
        what="preferences",
    )
    distinct = {key_of(row): row for row in rows}
    dropped["exact_duplicate"] = len(rows) - len(distinct)
    started = time.perf_counter()
    trainer, prepared = _spread(spec, model)
    scores = _measure(trainer, prepared, distinct, padding_id(tokenizer))
    if trainer.is_world_process_zero():
        write_reference(spec.out / FILE, distinct, [scores[key] for key in distinct])
        facts = {
            "seconds_scoring": round(time.perf_counter() - started, 2),
            "peak_memory_bytes": peak_memory(trainer.args.device),
        }
        spec.finish({"kept": len(distinct), "dropped": dict(+dropped), "facts": facts})
    if trainer.args.world_size > 1:  # a rank that exits first can take gloo's threads down with an abort
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def _load_model(spec: ReferenceSpec) -> PreTrainedModel:
    if spec.config.quantize == "none":
        return (allocate_pretrained if divides(spec.runtime.posttrain) else load_pretrained)(spec.model)
    bfloat16 = bfloat16_for(spec.config.precision, spec.runtime)
    return load_nf4(spec.model, cuda=uses_cuda(spec.runtime), bfloat16=bfloat16)


def _spread(spec: ReferenceSpec, model: PreTrainedModel) -> tuple[Trainer, Any]:
    """A trainer on the engine of the runtime, for its processes and precision, and the model as that engine holds a
    reference model."""
    from transformers import Trainer, TrainingArguments
    from trl.models.utils import prepare_deepspeed
    from trl.trainer.utils import add_fused_lm_head

    cuda = uses_cuda(spec.runtime)
    runtime = spec.runtime.posttrain.model_copy(update={"recompute": "none", "compile": "off"})  # forward passes only
    arguments = TrainingArguments(
        output_dir=str(spec.scratch),
        per_device_train_batch_size=MEASURED_ROWS,
        bf16=bfloat16_for(spec.config.precision, spec.runtime),
        use_cpu=not cuda,
        report_to=[],
        disable_tqdm=True,
        **engine_arguments(runtime, cpu=not cuda),
    )
    with _as_if_adapted(model):
        trainer = Trainer(model=model, args=arguments)
    check_engine(trainer, runtime)
    model.eval()
    add_fused_lm_head(model)
    if divides(runtime):
        divide_frozen(model, spec.model, runtime, bfloat16=arguments.bf16)
    return trainer, prepare_deepspeed(model, trainer.accelerator) if trainer.is_deepspeed_enabled else model


@contextmanager
def _as_if_adapted(model: PreTrainedModel) -> Iterator[None]:
    """Makes the model claim to have an adapter: a trainer refuses a model in 4 bits without one, even if it is to train
    nothing."""
    before = model._hf_peft_config_loaded
    model._hf_peft_config_loaded = True
    try:
        yield
    finally:
        model._hf_peft_config_loaded = before


@torch.no_grad()
def _measure(trainer: Trainer, model: Any, rows: Mapping[Key, Row], padding: int) -> dict[Key, list[float]]:
    """The log-probabilities of all pairs, on every process."""
    from accelerate.utils import gather_object
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    collate = DataCollatorForPreference(pad_token_id=padding)
    ordered = sorted(rows, key=lambda key: (-_length(rows[key]), key))
    batches = [ordered[start : start + MEASURED_ROWS] for start in range(0, len(ordered), MEASURED_ROWS)]
    world = trainer.args.world_size
    rounds = -(-len(batches) // world)
    mine: list[tuple[Key, list[float]]] = []
    for done in range(rounds):
        number = done * world + trainer.args.process_index
        keys = batches[min(number, len(batches) - 1)]  # every process must call a sharded model: some repeat the last
        batch: Any = trainer._prepare_inputs(collate([rows[key] for key in keys]))
        with trainer.accelerator.autocast():
            sums = answer_log_probabilities(model, batch)
        mine += zip(keys, torch.stack(sums.chunk(2), 1).tolist(), strict=True)
        if trainer.is_world_process_zero():
            emit(done=min(len(batches), (done + 1) * world), batches=len(batches))
    return dict(mine if world == 1 else gather_object(mine))


def answer_log_probabilities(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """The log-probability of each answer of a batch, summed over its tokens. For a batch of pairs, those of all chosen
    answers come before those of all rejected ones."""
    labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, -100)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    of_tokens: Tensor = model(**inputs, labels=labels, use_cache=False, fused_lm_head=True).log_probs
    return of_tokens.sum(1).float()


def _length(row: Row) -> int:
    answers: Sequence[Sequence[int]] = (row["chosen_ids"], row["rejected_ids"])
    return len(row["prompt_ids"]) + max(map(len, answers))


if __name__ == "__main__":
    run_as_child(score)
