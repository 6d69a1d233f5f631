"""Chooses the device that models run on, and checks before a run starts whether this machine can have a GPU at all. The
check does without torch, which takes seconds to import.
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

# Files of the drivers of NVIDIA, of NVIDIA in WSL and on Jetson boards, and of AMD, which torch calls cuda too
DRIVERS = ("dev/nvidiactl", "proc/driver/nvidia/version", "dev/dxg", "dev/nvmap", "dev/kfd")
LIBRARY = "libcuda.so.1"
_CLAIMS: dict[str, socket.socket] = {}  # held open


def device_of(compute: ComputeRuntime) -> torch.device:
    """The device that a runtime sets. For auto it is a GPU if torch has one."""
    import torch

    cuda = compute.device == "cuda" or (compute.device == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if cuda else "cpu")


def own_device(compute: ComputeRuntime) -> torch.device:
    """The device of this process among those of a launcher. Sets LOCAL_RANK to match, as libraries go by it.

    Raises ConfigError as `place` does, and for a GPU as `claim` does.
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
    """Take a GPU for this process, as long as it lives. NCCL can't tell, as it fails if two ranks share a GPU.

    Raises ConfigError if another process of the same training, known by its meeting address, has taken it.
    """
    name = f"\0gristmill {gpu} {meeting}"  # an abstract socket: no file, and gone with the process
    if name in _CLAIMS:
        return
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(name)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise ConfigError(
            f"Processes share a GPU of {socket.gethostname()}: runtime.training.processes is larger than the number of "
            "GPUs that they see there.",
            "Set runtime.training.processes to the number of GPUs of a host, or show the run more of them "
            "(CUDA_VISIBLE_DEVICES, or the scheduler's request for the job).",
        ) from error
    _CLAIMS[name] = lock


def place(setting: str, local: int, gpus: int) -> torch.device:
    """The device of the process with this local rank, which sees `gpus` GPUs here: one each, or the CPU for all. A
    single visible GPU is its own, as a scheduler can show each process a different one.

    Raises ConfigError for too few GPUs.
    """
    import torch

    if setting == "cpu" or (setting == "auto" and not gpus):
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
    """Raises ConfigError if `runtime.compute.device` is cuda and this machine certainly lacks a GPU for torch."""
    if runtime.compute.device != "cuda":
        return
    why = missing_gpu()
    if why is not None:
        raise ConfigError(
            f"runtime.compute.device is cuda, but {why}.",
            "Install a torch that is built for this GPU and its driver, or set runtime.compute.device to auto or cpu.",
        )


def check_training_device_here(runtime: Runtime) -> None:
    """Like `check_device_here`, unless other hosts than this one may train."""
    if runtime.training.hostfile is None and slurm_nodes() == 1:
        check_device_here(runtime)


def missing_gpu(environment: Mapping[str, str] | None = None, root: Path = Path("/")) -> str | None:
    """The reason why torch can't have a GPU here, None if it may have one. Gives a reason only if it is certain: a
    driver whose device is gone, for instance, is for torch to report."""
    environment = os.environ if environment is None else environment
    try:
        if version("torch").endswith("+cpu"):
            return f"torch {version('torch')} is built for CPUs only"
    except PackageNotFoundError:
        pass  # a torch that is not installed as a package may be of any kind
    if environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    if any((root / path).exists() for path in DRIVERS):
        return None
    try:
        # A driver may load only when it is first used. Initialising the library would break forks, so it is only opened
        ctypes.CDLL(LIBRARY)
    except OSError:
        return "this machine lacks a GPU driver"
    return None
