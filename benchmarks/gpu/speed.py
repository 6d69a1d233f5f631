"""Sections: training, beside a loop like nanoGPT's, transformers' Trainer and litgpt, where that is installed. `speed`
has the rows that tell most, `further` the others.

Utilisation is of the device's data sheet (models/devices.py), and of the peak that a side measured, if it did: model
FLOPs by PaLM's count, attention over the whole context included, also where documents are apart. The first steps of a
side, with all compilation, are not counted. Memory is that of the GPU's tensors. On a CPU it is left out: it would be
that of the process, which other sides had before. Beside our runs stand the memory and the time that `gristmill plan`
says for them. FSDP shards nothing over one GPU; it is there because its residual stream is bfloat16, where DDP's is
float32. Losses are those of other batches, and the Trainer's is a mean over all steps: they show that a side learns,
not which one learns better.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.sizes import LARGE, LONG, MEDIUM, SMALL
from benchmarks.pretrain.ours import config_of, runtime_of, shape_of
from benchmarks.pretrain.sizes import Size, Task
from models.compute import bill, executed_flops_per_token
from models.devices import Device, reported_device
from models.memory import training_memory
from models.presets import count_parameters, flops_per_token
from tasks.pretrain.setup import setup_of

NAME, FURTHER = "speed", "further"
OURS, OURS_EAGER, OURS_FSDP = "gristmill, compiled", "gristmill", "gristmill, FSDP, compiled"
OURS_APART, OURS_FLOAT8 = "gristmill, compiled, documents apart", "gristmill, compiled, float8"
TRAINER, TRAINER_COMPILED = "transformers Trainer", "transformers Trainer, compiled"
LITGPT, PLAIN = "litgpt, compiled", "plain loop, compiled"
Row = tuple[str, str, str]  # size, family, side
# In this order, as time may run out; a side that leaves its process changed (state.py) late
TELLING: tuple[Row, ...] = (
    (SMALL, "llama", OURS),
    (MEDIUM, "llama", OURS),
    (LARGE, "llama", OURS),
    (SMALL, "llama", OURS_FSDP),
    (LARGE, "llama", OURS_FLOAT8),
    (SMALL, "llama", OURS_APART),
    (SMALL, "llama", TRAINER),
    (SMALL, "llama", LITGPT),
)
OTHERS: tuple[Row, ...] = (
    *((size, "llama", OURS) for size in (SMALL, MEDIUM, LARGE)),  # where `speed` has not measured them
    (LONG, "llama", OURS),
    (LONG, "llama", OURS_APART),
    (SMALL, "gpt2", OURS),
    *((size, "llama", side) for size in (MEDIUM, LARGE) for side in (TRAINER, LITGPT)),
    (SMALL, "llama", OURS_EAGER),
    (SMALL, "gpt2", PLAIN),
    (SMALL, "llama", TRAINER_COMPILED),
)
MODULES = {"gristmill": "ours", "litgpt": "litgpt_side"}
FULL = 0.85  # of the device's memory, by the plan, which leaves out the CUDA context and fragmentation


def run(bench: Bench, rows: Sequence[Row] = TELLING) -> None:
    """A row for each size, family and side that there is none for yet; where models are tiny, all sizes are one."""
    device, smallest = this_device(bench), next(iter(bench.sizes))
    for name, family, side in rows:
        name = smallest if bench.tiny else name
        what = f"{side}, {family}, {name}"
        if (name, family, side) in bench.steps:
            continue
        if lacking := _lacking(side, device):
            bench.results.note(NAME, f"{what} is left out: {lacking}")
            continue
        task = fitted(_task(bench, side, family, bench.sizes[name]), device)
        found = bench.measured(NAME, what, {"task": task.to_json()})
        if found is not None:
            bench.steps[name, family, side] = found["seconds"]
            _report(bench, name, task, device, found)


run_others = functools.partial(run, rows=OTHERS)


def measure(task: str) -> dict[str, float]:
    """In the shared process: what a side measures."""
    from benchmarks.pretrain.answer import measured

    asked = Task.from_json(task)
    module = MODULES.get(asked.side.partition(",")[0], "peers")
    return measured(importlib.import_module(f"benchmarks.pretrain.{module}").run, asked)


def this_device(bench: Bench) -> Device | None:
    """The data sheet of the GPU at hand, if it is known."""
    return None if bench.gpu is None else reported_device(bench.gpu)


def fitted(task: Task, device: Device | None) -> Task:
    """The task with the largest micro-batch that fits by the plan."""
    if device is None:
        return task
    size = task.size
    while size.micro_batch > 1 and _planned_memory(replace(task, side=OURS, size=size)) > FULL * device.memory:
        size = replace(size, micro_batch=size.micro_batch // 2)
    return replace(task, size=size)


def _lacking(side: str, device: Device | None) -> str | None:
    """What a side lacks here."""
    if side == OURS_FLOAT8 and (device is None or not device.float8):
        return "no device is known that multiplies in 8 bits"
    package = {OURS_FLOAT8: "torchao", LITGPT: "litgpt"}.get(side)
    if package is not None and importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    return None


def _planned_memory(task: Task) -> int:
    setup = setup_of(config_of(task), runtime_of(task), cuda=task.device == "cuda")
    return training_memory(shape_of(task), setup).total


def _report(bench: Bench, name: str, task: Task, device: Device | None, found: dict[str, Any]) -> None:
    shape, speed, ours = shape_of(task), task.size.tokens / found["seconds"], bench.steps.get((name, task.family, OURS))
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
        peak_memory_mb=found["peak"] / 1e6 if bench.device == "cuda" else None,
        planned_memory_mb=None if planned is None else planned / 1e6,
        step_seconds=found["seconds"],
        planned_seconds=None if hours is None else 3600 * hours,
        data_share=found.get("data"),
        loss=found["loss"],
    )


def _task(bench: Bench, side: str, family: str, size: Size) -> Task:
    tokens, tokenizer = bench.tokens
    return Task(side, family, size, bench.threads, str(tokens), str(tokenizer), bench.device)
