"""The processes of a training run: how they join, communicate and leave."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from storage.errors import ConfigError
from tasks.stage.runtime import Runtime

T = TypeVar("T")

PATIENCE = timedelta(hours=1)  # one rank may have large states to convert before a resume


@dataclass(frozen=True)
class World:
    """This process among the others; one that `reports` tells the stage about progress."""

    rank: int
    size: int
    device: torch.device
    reports: bool = True

    @property
    def first(self) -> bool:
        """Whether this process is rank 0, which writes for all."""
        return self.rank == 0

    def mean(self, values: Tensor) -> Tensor:
        """The mean of `values` over all ranks, on every rank; changes them in place."""
        if self.size > 1:
            torch.distributed.all_reduce(values)
            values /= self.size
        return values

    def sum(self, values: Tensor) -> Tensor:
        """The sum of `values` over all ranks, on every rank; changes them in place."""
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
        """Barrier of all ranks."""
        if self.size > 1:
            torch.distributed.barrier()

    def leave(self) -> None:
        """Leave together: a rank that exits first can make gloo abort on the others."""
        self.wait()
        torch.distributed.destroy_process_group()


def reports(runtime: Runtime) -> bool:
    """Whether this process reports to the stage: rank 0, or with a rendezvous the first process of each host, since a
    stage hears only its own host, and torchrun decides which host has rank 0."""
    return os.environ.get("RANK" if runtime.training.rendezvous is None else "LOCAL_RANK", "0") == "0"


def join(runtime: Runtime) -> World:
    """Join the process group that a launcher's environment describes, or form one alone. To be called before DeepSpeed
    is imported.

    One process needs no network: torch.distributed runs on an in-memory store. Raises ConfigError as `place`.
    """
    for name, alone in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        os.environ.setdefault(name, alone)
    rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    device = place(runtime.compute.device, local, torch.cuda.device_count())
    cuda = device.type == "cuda"
    if not cuda:
        os.environ["DS_ACCELERATOR"] = "cpu"
    torch.set_num_threads(runtime.compute.threads)
    if cuda:
        torch.cuda.set_device(device)
    backend = "nccl" if cuda else "gloo"
    if size == 1:
        torch.distributed.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    else:
        torch.distributed.init_process_group(backend, timeout=PATIENCE)
    return World(rank, size, device, reports(runtime))


def place(asked: str, local: int, gpus: int) -> torch.device:
    """The device of the process with this local rank on a host with so many GPUs: one each, or the CPU for all.

    Raises ConfigError for too few GPUs.
    """
    if asked == "cpu" or (asked == "auto" and not gpus):
        return torch.device("cpu")
    if not gpus:
        raise ConfigError(
            f"runtime.compute.device is cuda, but torch {torch.__version__} sees no GPU here.",
            "Install a torch that is built for this GPU and its driver, or set runtime.compute.device to auto or cpu.",
        )
    if local >= gpus:
        raise ConfigError(
            f"runtime.training.processes asks for more than {local} processes on this host, which has {gpus} GPU(s).",
            f"Set runtime.training.processes to at most {gpus} (one per GPU), or runtime.compute.device to cpu.",
        )
    return torch.device("cuda", local)
