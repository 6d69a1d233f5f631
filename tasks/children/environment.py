"""The environment of a training process: variables that must be set before Python starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from storage.files.cache import cache_folder
from tasks.stage.output import Output
from tasks.stage.runtime import ComputeRuntime

FORWARDED = ("GRISTMILL_FAULTS",)
GIVEN_BACK = {"tasks.pretrain.train": 1 << 22}  # bytes of a freed tensor, and above, by the module that runs


def training_environment(compute: ComputeRuntime, processes: int = 1, module: str = "") -> dict[str, str]:
    """The environment of a training child that runs a module, one of `processes` on this host: this process's own, with
    the variables that must be set before Python starts.

    The allocator keeps the memory of freed tensors: steps of a small model are 35 % faster, as a fresh page costs as
    much as the arithmetic on it. Large ones of pretraining it gives back. Kept, they would leave room that the next one
    doesn't fit: with LoRA a process took half as much again, in the same time. But TRL makes tiles of logits so often
    that SFT of a small model would take three quarters longer. OpenMP threads that wait spin for a moment, then sleep:
    steps are a tenth to a sixth faster than when they sleep at once, while threads that spin for longer starve each
    other on a busy machine. No library calls out.
    """
    return {**os.environ, **_settings(compute, processes, module)}


def _settings(compute: ComputeRuntime, processes: int, module: str) -> dict[str, str]:
    threads = str(compute.cpu_threads(processes))
    environment = {
        "MALLOC_TOP_PAD_": str(1 << 28),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
        "MALLOC_MMAP_THRESHOLD_": str(GIVEN_BACK.get(module, 1 << 32)),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "1000",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "WANDB_MODE": "disabled",
        # torch unpickles its cache. The default is in /tmp, where another user can have created the folder
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "torchinductor")),
        "PYTHONUNBUFFERED": "1",
        "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",  # for every torch.load, libraries' too: tasks/training/states_only.py
    }
    if compute.device == "cpu":
        environment["DS_ACCELERATOR"] = "cpu"
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment


def environment_file(out: Output, further: Mapping[str, str], module: str = "") -> Path:
    """Write the variables that DeepSpeed's runner passes to processes on other hosts, which get no others: those of a
    training by this module, injected faults, `further` ones, and those of the user's own files (.deepspeed_env)."""
    own = [Path(folder, os.environ.get("DS_ENV_FILE", ".deepspeed_env")) for folder in (Path.home(), ".")]
    lines = [line for file in own if file.is_file() for line in file.read_text().splitlines() if line]
    settings = _settings(out.runtime.compute, out.runtime.training.processes, module)
    passed = {**settings, **{name: os.environ[name] for name in FORWARDED if name in os.environ}, **further}
    path = out.scratch / "environment"
    path.touch(mode=0o600)
    path.chmod(0o600)  # the user's own may hold tokens
    path.write_text("".join(f"{line}\n" for line in (*lines, *(f"{name}={value}" for name, value in passed.items()))))
    return path
