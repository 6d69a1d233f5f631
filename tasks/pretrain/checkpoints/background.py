"""Saving behind: states are copied at once, and written while training goes on.

On a GPU the copy goes to pinned memory on the host, which is kept for the next save; the writing ranks agree over a
group of their own on the CPU (gloo), since training speaks over the other at the same time. The copy is what keeps a
step from changing what is being written. (torch.distributed.checkpoint's async_save.)

On a CPU the writing takes its time from the steps and the copy takes memory, so `auto` leaves it off there: for 28M
parameters (333 MB) a save took 1.2 CPU seconds in either way, and 330 MB more behind.
"""

from __future__ import annotations

import functools
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from storage.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlanner

    from tasks.pretrain.engines.base import Engine


def writes_behind(engine: Engine) -> bool:
    """Whether checkpoints of this engine are written behind, as `runtime.pretrain.async_checkpoints` says.

    Raises ConfigError where it is asked of an engine that can't.
    """
    asked = engine.spec.runtime.pretrain.async_checkpoints
    if asked == "on" and not engine.saves_behind:
        raise ConfigError(
            f"runtime.pretrain.async_checkpoints is on, but the engine {engine.spec.runtime.pretrain.engine} can only "
            "write while training waits.",
            "Leave it at auto, or choose another runtime.pretrain.engine, such as ddp.",
        )
    return asked == "on" or (asked == "auto" and engine.saves_behind and engine.world.device.type == "cuda")


def save_behind(states: dict[str, Any], folder: Path, planner: SavePlanner) -> Future[None]:
    """Copy the states and begin to write them into `folder`. The first rank's future is done when all have written."""
    from torch.distributed.checkpoint.state_dict_saver import async_save

    response = async_save(states, checkpoint_id=folder, planner=planner, process_group=_group(), async_stager=_stager())
    writing: Future[None] = response  # type: ignore[assignment]  # a Future, as staging is not asynchronous
    return writing


@functools.cache
def _group() -> Any:
    """The writers' own group. Made at the first save, which every rank calls."""
    return torch.distributed.new_group(backend="gloo")


@functools.cache
def _stager() -> Any:
    """What copies the states; kept, with its memory, from save to save."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    cuda = torch.cuda.is_available()
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=cuda, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=cuda
        )
    )
