"""Disk space for everything a run will write, checked before its first step."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from models.memory import checkpoint_bytes
from models.presets import Shape, count_parameters
from storage.errors import StoreError
from storage.files.disk import existing, mount
from storage.units import size_of
from tasks.pretrain.setup import setup_of
from tasks.pretrain.spec import TrainSpec
from tasks.training.retention import most_kept


class Room(NamedTuple):
    """One file system: the most that a run writes there, and the free space, in bytes."""

    folder: Path
    needed: int
    free: int
    what: str

    @property
    def enough(self) -> bool:
        """Whether there is enough space."""
        return self.needed <= self.free

    def __str__(self) -> str:
        return f"{size_of(self.needed)} needed ({self.what}), {size_of(self.free)} free on {mount(self.folder)}"


def largest_checkpoint(spec: TrainSpec) -> int:
    """The most bytes of one checkpoint. Whether `device: auto` finds a GPU is unknown here, so the larger of both."""
    cuda = {"cpu": (False,), "cuda": (True,), "auto": (False, True)}[spec.runtime.compute.device]
    setups = [setup_of(spec.config, spec.runtime, cuda=each) for each in cuda]
    trained = 1.0
    if not spec.config.trains_all:
        from tasks.pretrain.engines.trained import trained_sizes

        sizes = trained_sizes(spec.shape, spec.config, spec.base)
        trained = sum(map(math.prod, sizes.values())) / count_parameters(spec.shape)
    return max(checkpoint_bytes(spec.shape, replace(setup, trained=trained)) for setup in setups)


def model_bytes(shape: Shape) -> int:
    """Bytes of a model folder: float32 weights, and a tokenizer of about 40 bytes per token."""
    return 4 * count_parameters(shape) + 40 * shape.vocab_size


def rooms(spec: TrainSpec) -> list[Room]:
    """Each file system that the run writes to. One checkpoint more than are kept exists while it is written. Files of
    an interrupted run will be replaced, so they count as free."""
    runtime = spec.runtime
    number = 1 + most_kept(
        spec.steps,
        newest=runtime.training.keep_checkpoints,
        every=runtime.pretrain.keep_every,
        apart=runtime.training.checkpoint_every,
    )
    number += runtime.pretrain.branches
    taken = len(spec.snapshot_steps)
    parts = [(spec.scratch, f"{number} checkpoints", number * largest_checkpoint(spec))]
    parts.append((spec.out, "the model", model_bytes(spec.shape)))
    if taken:
        parts.append((spec.scratch, f"{taken} snapshots", taken * model_bytes(spec.shape)))
    systems: dict[int, list[tuple[Path, str, int]]] = {}
    for folder, what, size in parts:
        systems.setdefault(existing(folder).stat().st_dev, []).append((folder, what, size))
    by_system = []
    for group in systems.values():
        folder = group[0][0]
        held = sum(path.stat().st_size for path in _earlier_files(spec)) if folder == spec.scratch else 0
        free = shutil.disk_usage(existing(folder)).free + held
        whats = ", ".join(f"{what} {size_of(size)}" for _, what, size in group)
        by_system.append(Room(folder, sum(size for _, _, size in group), free, whats))
    return by_system


def check_room(spec: TrainSpec) -> None:
    """Raises StoreError, with the space needed and free, if the run would not fit."""
    for room in rooms(spec):
        if not room.enough:
            raise StoreError(
                f"The run does not fit on the disk: {room}.",
                "Free space (`gristmill store gc`), lower runtime.training.keep_checkpoints, or raise "
                "runtime.pretrain.keep_every or pretrain.snapshot_every.",
            )


def _earlier_files(spec: TrainSpec) -> Iterator[Path]:
    for top in (spec.checkpoints, spec.snapshots):
        for folder, _, names in os.walk(top):
            yield from (Path(folder, name) for name in names)
