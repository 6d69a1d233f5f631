"""What a task may leave behind in its process, where it would change the next.

Put back are the environment, random numbers, process groups, compiled code, the compiler's configs, accelerate's
singletons and free memory. Others are only looked at: memory of the GPU that something still holds, and settings of
torch, as some have two interfaces that must not be mixed.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._dynamo import config as dynamo
from torch._inductor import config as inductor

SEED = 0
MAY_STAY = 256 << 20  # bytes of the GPU: workspaces of its libraries
CONFIGS = (dynamo, inductor)


@dataclass(frozen=True)
class State:
    """A process before its first task."""

    environment: dict[str, str]
    configs: tuple[dict[str, Any], ...]
    settings: dict[str, Any]

    @classmethod
    def now(cls) -> State:
        """Of this process, whose random numbers are those of every task from now on."""
        _seed()
        return cls(dict(os.environ), tuple(config.get_config_copy() for config in CONFIGS), _settings())

    def restore(self) -> bool:
        """Take away what a task left; returns whether all is as it was."""
        os.environ.clear()
        os.environ.update(self.environment)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        torch._dynamo.reset()
        for config, before in zip(CONFIGS, self.configs, strict=True):
            for name, value in config.get_config_copy().items():
                if value != before[name]:
                    setattr(config, name, before[name])
        _forget_accelerator()
        gc.collect()
        held = 0
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        _seed()
        return held <= MAY_STAY and _settings() == self.settings


def _seed() -> None:
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


def _forget_accelerator() -> None:
    """accelerate keeps device and precision of its first use for the life of a process."""
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def _settings() -> dict[str, Any]:
    """Those that decide how fast and how exactly torch computes."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return {
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "products": cuda.matmul.fp32_precision,
        "convolutions": cudnn.conv.fp32_precision,  # type: ignore[attr-defined]  # torch sets the module's class
        "sums": cuda.matmul.allow_bf16_reduced_precision_reduction,
        "tuned": cudnn.benchmark,
        "attention": (
            cuda.flash_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
            cuda.math_sdp_enabled(),
        ),
    }
