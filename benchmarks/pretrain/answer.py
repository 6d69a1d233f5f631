"""Runs a side's task. Imports only torch, since peers run in another environment."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.pretrain.sizes import WARM, Task

Train = Callable[[Task], dict[str, float]]


def answer(train: Train) -> None:
    """Print what the task of the command line measures."""
    print(json.dumps(measured(train, Task.from_json(sys.argv[1]))))


def measured(train: Train, task: Task) -> dict[str, float]:
    """What a task measures with its number of threads, the peak bytes of the device's memory, or this process's, and
    the least CPU seconds from one call of the optimizer to the next: other work on a machine only adds to them."""
    torch.set_num_threads(task.threads)
    ends: list[float] = []
    hook = register_optimizer_step_post_hook(lambda *_: ends.append(time.process_time()))
    found = train(task)
    hook.remove()
    found["cpu"] = min(end - begin for begin, end in pairwise(ends[WARM - 1 :]))
    if task.device == "cuda":
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = peak_bytes()
    return {**found, "peak": peak}


def peak_bytes() -> int:
    """The peak memory of this process. ru_maxrss is inherited: it may be that of the benchmark itself."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
