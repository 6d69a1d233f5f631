"""A training that runs out of memory goes on from its last checkpoint with fewer rows in a forward pass.

Neither that nor recomputed activations changes more of the result than the rounding of sums. What would shard the model
over processes is for the user to decide: `pretrain`, whose engines load each other's checkpoints, goes further
(tasks/pretrain/healing/).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from storage.errors import LostProcess, OutOfMemory
from tasks.children.spec import ChildSpec
from tasks.stage.output import Output
from tasks.stage.runtime import PosttrainRuntime
from tasks.training.batches import BatchShare
from tasks.training.recovery.out_of_memory import kills, named

Spec = TypeVar("Spec", bound=ChildSpec)


def run_with_less(spec: Spec, out: Output, share: BatchShare, run: Callable[[Spec], dict[str, Any]]) -> dict[str, Any]:
    """What `run` returns, called again with less to hold in memory until it fits; `share` is what a process takes of a
    global batch. Raises what `run` does where nothing is left to change."""
    rows, healed = share.micro_batch, 0
    while True:
        killed = kills()
        try:
            found = run(spec)
            out.fact(out_of_memory=healed)
            return found
        except (OutOfMemory, LostProcess) as error:
            fault = named(error, kills() - killed)
            change = _less(rows, share, spec.runtime.posttrain) if isinstance(fault, OutOfMemory) else None
            if change is None:
                if fault is error:
                    raise
                raise fault from error
            setting, value = change
            rows, healed = value if isinstance(value, int) else rows, healed + 1
            out.warn(f"memory ran out: it goes on with runtime.posttrain.{setting} {value}")
            spec = spec.model_copy(update={"runtime": spec.runtime.with_changes("posttrain", **{setting: value})})


def _less(rows: int, share: BatchShare, runtime: PosttrainRuntime) -> tuple[str, int | str] | None:
    """The setting to change and its new value; None if nothing is left."""
    if rows > 1:
        return "micro_batch", next(size for size in range(rows // 2, 0, -1) if share.sequences % size == 0)
    return ("recompute", "full") if runtime.recompute == "none" else None
