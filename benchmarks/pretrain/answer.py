"""Runs a peer's task and prints its result. Imports only torch, since peers run in another environment."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from benchmarks.pretrain.sizes import Task


def answer(train: Callable[[Task], dict[str, float]]) -> None:
    """Run the task of the command line with its number of threads; print the measurements, and peak bytes of the
    device's memory."""
    task = Task.from_arguments()
    torch.set_num_threads(task.threads)
    measured = train(task)
    if task.device == "cuda":
        peak = torch.cuda.max_memory_allocated()
    else:
        with open("/proc/self/status") as status:  # ru_maxrss is inherited: it may be that of the benchmark itself
            peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    print(json.dumps({**measured, "peak": peak}))
