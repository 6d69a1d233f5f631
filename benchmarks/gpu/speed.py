"""Section: training, beside a loop like nanoGPT's, transformers' Trainer and litgpt, where that is installed.

Utilisation is of the device's data sheet (models/devices.py), and of the peak that a side measured, if it did: model
FLOPs by PaLM's count, attention over the whole context included. Each side is a new process; its first steps, with all
compilation, are not counted. Beside our runs stand the memory and the time that `gristmill plan` says for them. FSDP
shards nothing over one GPU; it is there because it keeps the residual stream in bfloat16, and DDP in float32. Losses
are those of other batches, and the Trainer's is a mean over all steps: they show that a side learns, not which one
learns better.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.pretrain.ours import config_of, runtime_of, shape_of
from benchmarks.pretrain.sizes import Size, Task
from models.compute import bill, executed_flops_per_token
from models.devices import Device, reported_device
from models.memory import training_memory
from models.presets import count_parameters, flops_per_token
from tasks.pretrain.setup import setup_of

NAME = "speed"
OURS, OURS_EAGER, OURS_FSDP = "gristmill, compiled", "gristmill", "gristmill, FSDP, compiled"
PEERS = ("transformers Trainer", "transformers Trainer, compiled", "litgpt, compiled")
# In this order, as time may run out: with every size, then with the first alone, and again with the others
EVERY = (("llama", OURS),)
FIRST = (
    ("gpt2", OURS),
    ("gpt2", "plain loop, compiled"),
    *(("llama", side) for side in (OURS_EAGER, OURS_FSDP, *PEERS)),
)
OTHERS = (("llama", "transformers Trainer"), ("llama", "litgpt, compiled"))
MODULES = {"gristmill": "pretrain.ours", "litgpt": "pretrain.litgpt_side"}
FULL = 0.85  # of the device's memory, by the plan, which leaves out the CUDA context and fragmentation


def run(bench: Bench) -> None:
    """A row for each size, family and side."""
    device, first = this_device(bench), next(iter(bench.sizes))
    ours: dict[tuple[str, str], float] = {}  # seconds of a step of ours, which the others are compared with
    for sides, names in ((EVERY, list(bench.sizes)), (FIRST, [first]), (OTHERS, [*bench.sizes][1:])):
        for name in names:
            for family, side in sides:
                if side.startswith("litgpt") and importlib.util.find_spec("litgpt") is None:
                    continue
                task = fitted(_task(bench, side, family, bench.sizes[name]), device)
                found = bench.measured(NAME, f"{side}, {family}, {name}", _module(side), task.to_json())
                if found is None:
                    continue
                if side == OURS:
                    ours[family, name] = found["seconds"]
                _report(bench, name, task, device, found, ours.get((family, name)))


def this_device(bench: Bench) -> Device | None:
    """The data sheet of the GPU at hand, if it is known."""
    if bench.device != "cuda":
        return None
    import torch

    return reported_device(torch.cuda.get_device_name())


def fitted(task: Task, device: Device | None) -> Task:
    """The task with the largest micro-batch that fits by the plan."""
    if device is None:
        return task
    size = task.size
    while size.micro_batch > 1 and _planned_memory(replace(task, side=OURS, size=size)) > FULL * device.memory:
        size = replace(size, micro_batch=size.micro_batch // 2)
    return replace(task, size=size)


def _planned_memory(task: Task) -> int:
    setup = setup_of(config_of(task), runtime_of(task), cuda=task.device == "cuda")
    return training_memory(shape_of(task), setup).total


def _report(
    bench: Bench, name: str, task: Task, device: Device | None, found: dict[str, Any], ours: float | None
) -> None:
    shape, speed = shape_of(task), task.size.tokens / found["seconds"]
    mine = task.side.startswith("gristmill")
    flops, sheet, peak = speed * flops_per_token(shape), device.half if device else None, found.get("peak_flops")
    planned = _planned_memory(task) if mine and device else None  # on a CPU the plan leaves out the process
    hours = bill(executed_flops_per_token(shape) * task.size.tokens, device).hours if mine and device else None
    bench.results.row(
        NAME,
        model=name,
        family=task.family,
        parameters=count_parameters(shape),
        side=task.side,
        micro_batch=task.size.micro_batch,
        tokens_a_second=speed,
        ours_over_it=None if ours is None else found["seconds"] / ours,
        mfu_data_sheet=None if not sheet else round(flops / sheet, 4),
        mfu_measured=None if not peak else round(flops / peak, 4),
        peak_memory_mb=found["peak"] / 1e6,
        planned_memory_mb=None if planned is None else planned / 1e6,
        step_seconds=found["seconds"],
        planned_seconds=None if hours is None else 3600 * hours,
        data_share=found.get("data"),
        loss=found["loss"],
    )


def _module(side: str) -> str:
    return MODULES.get(side.partition(",")[0], "pretrain.peers")


def _task(bench: Bench, side: str, family: str, size: Size) -> Task:
    tokens, tokenizer = bench.tokens
    return Task(side, family, size, bench.threads, str(tokens), str(tokenizer), bench.device)
