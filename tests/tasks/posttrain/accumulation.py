"""`torchrun … -m tests.tasks.posttrain.accumulation FOLDER`: the gradients of one step of SFT over many micro-batches
in bfloat16, by the engine that the folder is named after.

After the first step Adam's first moment is the gradient, times a tenth."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from models.pretrained import context_of, load_pretrained
from models.tokenizer import load_tokenizer
from tasks.posttrain.engines import check_engine, sum_gradients_in_float32
from tasks.posttrain.methods.sft import SFT, SftConfig
from tasks.posttrain.pair_lengths import render_rows
from tests.tasks.posttrain.in_process import parts_of
from tests.tasks.tiny_model import make_instructions, make_model

GLOBAL_BATCH = 128
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp": {"engine": "fsdp"},
    **{f"zero {stage}": {"engine": "deepspeed", "zero_stage": stage} for stage in (1, 2, 3)},
    "zero 2, offload": {"engine": "deepspeed", "zero_stage": 2, "offload": "optimizer"},
}


def gradients(folder: Path, precision: str, runtime: dict[str, Any]) -> dict[str, Tensor]:
    """The gradients of the first step, by name."""
    config = SftConfig.model_validate(
        {"global_batch": GLOBAL_BATCH, "precision": precision, "gradient_clip": 1e9, "warmup_share": 0.0}
    )
    model, pairs = folder.parent / "base" / "model", folder.parent / "pairs"
    context = context_of(load_pretrained(model).config)
    rows, *_ = render_rows(SFT, config, [*pairs.glob("*.jsonl")], load_tokenizer(model), context, Counter())
    parts = parts_of(SFT, config, model, rows, folder, micro_batch=1, **runtime)
    arguments = {**parts.arguments, "max_steps": 1, "save_strategy": "no"}
    trainer = SFT.make_trainer(replace(parts, arguments=arguments))
    check_engine(trainer, parts.runtime.posttrain)
    sum_gradients_in_float32(trainer, parts.runtime.posttrain)
    trainer.train()
    return {name: moment.float() for name, moment in moments(trainer)}


def moments(trainer: Any) -> Iterator[tuple[str, Tensor]]:
    """Adam's first moments of the whole parameters, by name."""
    if trainer.is_deepspeed_enabled:
        from deepspeed.utils import safe_get_full_optimizer_state

    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):  # of ZeRO 1 and 2, linked before states existed
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()
    for name, parameter in trainer.model_wrapped.named_parameters():
        if trainer.is_deepspeed_enabled:
            moment = safe_get_full_optimizer_state(parameter, "exp_avg")
        else:
            moment = optimizer.state[parameter]["exp_avg"]
        yield name.removeprefix("module."), moment.full_tensor() if isinstance(moment, DTensor) else moment


def main() -> None:
    """Write the gradients to a file."""
    folder = Path(sys.argv[1])
    found = gradients(folder, "bfloat16", ENGINES[folder.name])
    if torch.distributed.get_rank() == 0:
        torch.save(found, folder / "gradients.pt")
        (folder / "results.json").write_text(json.dumps(sorted(found)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def make_inputs(folder: Path) -> None:
    """The model and the pairs, beside the folders of engines."""
    make_model(folder / "base" / "model")
    make_instructions(folder / "pairs")


if __name__ == "__main__":
    main()
