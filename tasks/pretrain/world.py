"""The processes of a training run: how they join, communicate and leave."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from tasks.children.devices import own_device
from tasks.children.ranks import store_of_launcher
from tasks.stage.runtime import Runtime

T = TypeVar("T")

PATIENCE = timedelta(hours=1)  # one rank may convert large states before a resume


@dataclass(frozen=True)
class World:
    """This process among the others. One that `reports` sends progress to the stage."""

    rank: int
    size: int
    device: torch.device
    reports: bool = True

    @property
    def first(self) -> bool:
        """Whether this process is rank 0, which writes for all."""
        return self.rank == 0

    def mean(self, values: Tensor) -> Tensor:
        """The mean of `values` over all ranks, on every rank. Changes them in place."""
        if self.size > 1:
            torch.distributed.all_reduce(values)
            values /= self.size
        return values

    def sum(self, values: Tensor) -> Tensor:
        """The sum of `values` over all ranks, on every rank. Changes them in place."""
        if self.size > 1:
            torch.distributed.all_reduce(values)
        return values

    def gathered(self, value: T) -> list[T]:
        """Each rank's value (anything that can be pickled), on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Wait for all ranks (a barrier)."""
        if self.size > 1:
            torch.distributed.barrier()

    def leave(self) -> None:
        """Leave together: a rank that exits first can make gloo abort on the others."""
        self.wait()
        torch.distributed.destroy_process_group()


def reports(runtime: Runtime) -> bool:
    """Whether this process reports to the stage: rank 0, or with a rendezvous the first process of each host, since a
    stage reads only its own host's output, and torchrun decides which host has rank 0."""
    return os.environ.get("RANK" if runtime.training.rendezvous is None else "LOCAL_RANK", "0") == "0"


def join(runtime: Runtime) -> World:
    """Join the process group that a launcher's environment describes, or form one of a single process. Call it before
    DeepSpeed is imported.

    One process needs no network: torch.distributed runs on an in-memory store. Processes of one host communicate only
    over 127.0.0.1. Raises ConfigError as `own_device` does.
    """
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        os.environ.setdefault(name, value)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    reporting = reports(runtime)
    device = own_device(runtime.compute)
    cuda = device.type == "cuda"
    if not cuda:
        os.environ["DS_ACCELERATOR"] = "cpu"
    torch.set_num_threads(runtime.rank_threads)
    if cuda:
        torch.cuda.set_device(device)
    backend = "nccl" if cuda else "gloo"
    if size == 1:
        torch.distributed.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    else:
        store = store_of_launcher(os.environ, PATIENCE)
        place = (rank, size) if store else (-1, -1)  # without our store torch reads both from the environment
        torch.distributed.init_process_group(backend, store=store, rank=place[0], world_size=place[1], timeout=PATIENCE)
    return World(rank, size, device, reporting)
