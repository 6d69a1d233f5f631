"""Runs a peer's task and prints its result. Imports only torch, since peers run in another environment."""

from __future__ import annotations

import json
import resource
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
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({**measured, "peak": peak}))
