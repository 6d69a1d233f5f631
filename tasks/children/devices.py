"""The device that models run on; and whether this machine can have a GPU at all, which is asked before a run starts,
without torch: importing it takes seconds.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import ConfigError
from tasks.children.hosts import slurm_nodes
from tasks.stage.runtime import ComputeRuntime, Runtime

if TYPE_CHECKING:
    import torch

# Of the drivers of NVIDIA, of NVIDIA in WSL and on Jetson boards, and of AMD, which torch calls cuda too
DRIVERS = ("dev/nvidiactl", "proc/driver/nvidia/version", "dev/dxg", "dev/nvmap", "dev/kfd")
LIBRARY = "libcuda.so.1"
_CLAIMS: dict[str, socket.socket] = {}  # held open


def device_of(compute: ComputeRuntime) -> torch.device:
    """The device that a runtime asks for; for auto a GPU if torch has one."""
    import torch

    cuda = compute.device == "cuda" or (compute.device == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if cuda else "cpu")


def own_device(compute: ComputeRuntime) -> torch.device:
    """The device of this process among those of a launcher. Libraries place themselves by LOCAL_RANK, which is made to
    agree.

    Raises ConfigError as `place`, and as `claim` for a GPU.
    """
    import torch

    device = place(compute.device, int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count())
    if device.type == "cuda" and "LOCAL_RANK" in os.environ:
        os.environ["LOCAL_RANK"] = str(device.index)
    if device.type == "cuda" and "MASTER_PORT" in os.environ:
        meeting = f"{os.environ.get('MASTER_ADDR')}:{os.environ['MASTER_PORT']}"
        claim(str(torch.cuda.get_device_properties(device).uuid), meeting)
    return device


def claim(gpu: str, meeting: str) -> None:
    """Take a GPU for this process, as long as it lives. Not told over NCCL, which fails where two have the same.

    Raises ConfigError where another process of the same training, by the address at which it meets, has taken it.
    """
    name = f"\0gristmill {gpu} {meeting}"  # of a socket that no file is made for: with the process it is gone
    if name in _CLAIMS:
        return
    taken = socket.socket(socket.AF_UNIX)
    try:
        taken.bind(name)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise ConfigError(
            f"Processes share a GPU of {socket.gethostname()}: runtime.training.processes is larger than the number of "
            "GPUs that they see there.",
            "Set runtime.training.processes to the number of GPUs of a host, or show the run more of them "
            "(CUDA_VISIBLE_DEVICES, or what the job asks of its scheduler).",
        ) from error
    _CLAIMS[name] = taken


def place(asked: str, local: int, gpus: int) -> torch.device:
    """The device of the process with this local rank, which sees so many GPUs here: one each, or the CPU for all.
    A single one is its own: a scheduler can show each process another.

    Raises ConfigError for too few GPUs.
    """
    import torch

    if asked == "cpu" or (asked == "auto" and not gpus):
        return torch.device("cpu")
    if not gpus:
        raise ConfigError(
            f"runtime.compute.device is cuda, but torch {torch.__version__} sees no GPU here.",
            "Install a torch that is built for this GPU and its driver, or set runtime.compute.device to auto or cpu.",
        )
    if local >= gpus > 1:
        raise ConfigError(
            f"runtime.training.processes asks for more than {local} processes on this host, which has {gpus} GPU(s).",
            f"Set runtime.training.processes to at most {gpus} (one per GPU), or runtime.compute.device to cpu.",
        )
    return torch.device("cuda", local if gpus > 1 else 0)


def check_device_here(runtime: Runtime) -> None:
    """Raises ConfigError where `runtime.compute.device` is cuda and this machine certainly has no GPU for torch."""
    if runtime.compute.device != "cuda":
        return
    why = missing_gpu()
    if why is not None:
        raise ConfigError(
            f"runtime.compute.device is cuda, but {why}.",
            "Install a torch that is built for this GPU and its driver, or set runtime.compute.device to auto or cpu.",
        )


def check_training_device_here(runtime: Runtime) -> None:
    """As `check_device_here`, unless other hosts than this one may be those that train."""
    if runtime.training.hostfile is None and slurm_nodes() == 1:
        check_device_here(runtime)


def missing_gpu(environment: Mapping[str, str] | None = None, root: Path = Path("/")) -> str | None:
    """Why torch can't have a GPU here; None where it may have one. Says so only when that is certain: a driver whose
    device is gone, for instance, is torch's to report."""
    environment = os.environ if environment is None else environment
    try:
        if version("torch").endswith("+cpu"):
            return f"torch {version('torch')} is built for CPUs only"
    except PackageNotFoundError:
        pass  # a torch that is not installed as a package may be any
    if environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    if any((root / path).exists() for path in DRIVERS):
        return None
    try:
        # A driver may be loaded only when it is first used. The library is not initialised: that would break forks
        ctypes.CDLL(LIBRARY)
    except OSError:
        return "this machine has no driver of a GPU"
    return None
