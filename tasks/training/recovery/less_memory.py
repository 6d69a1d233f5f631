"""Resumes a training that ran out of memory from its last checkpoint, with fewer rows in a forward pass.

Fewer rows, and recomputed activations, change only the rounding of sums. Whether to shard the model over processes is
left to the user. `pretrain`, whose engines load each other's checkpoints, goes further (tasks/pretrain/healing/).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from storage.errors import LostProcess, OutOfMemory
from tasks.children.spec import ChildSpec
from tasks.stage.output import Output
from tasks.stage.runtime import PosttrainRuntime
from tasks.training.batches import BatchShare
from tasks.training.recovery.out_of_memory import kills, true_fault

Spec = TypeVar("Spec", bound=ChildSpec)


def run_with_less(
    spec: Spec, out: Output, share: BatchShare, run: Callable[[Spec], dict[str, Any]], *, recomputes: bool = True
) -> dict[str, Any]:
    """The result of `run`, which is called again with less in memory until it fits. `share` is a process's share of a
    global batch, and `recomputes` says whether activations can be recomputed. Raises what `run` does if nothing is left
    to change."""
    rows, healed = share.micro_batch, 0
    while True:
        killed = kills()
        try:
            result = run(spec)
            out.fact(out_of_memory=healed)
            return result
        except (OutOfMemory, LostProcess) as error:
            fault = true_fault(error, kills() - killed)
            change = _less(rows, share, spec.runtime.posttrain, recomputes) if isinstance(fault, OutOfMemory) else None
            if change is None:
                if fault is error:
                    raise
                raise fault from error
            setting, value = change
            rows, healed = value if isinstance(value, int) else rows, healed + 1
            out.warn(f"memory ran out: resuming with runtime.posttrain.{setting} {value}")
            spec = spec.model_copy(update={"runtime": spec.runtime.with_changes("posttrain", **{setting: value})})


def _less(rows: int, share: BatchShare, runtime: PosttrainRuntime, recomputes: bool) -> tuple[str, int | str] | None:
    """The setting to change and its new value, or None if nothing is left to change."""
    if rows > 1:
        return "micro_batch", next(size for size in range(rows // 2, 0, -1) if share.sequences % size == 0)
    return ("recompute", "full") if recomputes and runtime.recompute == "none" else None
