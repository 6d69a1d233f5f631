"""How a peer answers, in whichever environment it runs: nothing but torch is imported."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable

import torch

from benchmarks.pretrain.sizes import Task


def answer(train: Callable[[Task], dict[str, float]]) -> None:
    """Do the task of the command line in as many threads as it says; print what was measured, and the peak in bytes."""
    task = Task.from_arguments()
    torch.set_num_threads(task.threads)
    measured = train(task)
    print(json.dumps({**measured, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
