"""Whether compiling a model's blocks pays for a training on a CPU. No torch: `plan` says it too.

That follows from the work of the whole training and from nominal speeds, never from a clock or from what a cache holds.
Compiled kernels may round sums differently, so a training that resumes or is repeated must decide as it did before.
"""

from __future__ import annotations

import os
import shutil
from typing import NamedTuple

from models.presets import ModelShape, Shape, flops_per_token
from storage.units import duration
from tasks.children.hosts import hosts_of
from tasks.pretrain.config import PretrainConfig
from tasks.stage.runtime import Runtime

SECONDS = 60.0  # to compile, with torch's import of its compiler: 20 to 110 CPU seconds were measured
GAIN = 0.05  # of a step's time: 5 to 9 % were measured, from 1.3M to 16M parameters
SPEED = 45e9  # FLOP/s of a thread in training
PARALLEL = ("tensor_parallel", "pipeline_parallel", "context_parallel")


class Compiling(NamedTuple):
    """A decision for `runtime.pretrain.compile: auto`."""

    pays: bool
    why: str


def compiling(config: PretrainConfig, shape: Shape, steps: int, runtime: Runtime, *, cuda: bool) -> Compiling:
    """Whether to compile a training of `steps`, by a shape with the context of its sequences."""
    if obstacle := _obstacle(config, shape, runtime, cuda=cuda):
        return Compiling(False, obstacle)
    threads = runtime.rank_threads * runtime.training.processes * (hosts_of(runtime.training) or 1)
    seconds = flops_per_token(shape) * config.samples(steps) * shape.context / (SPEED * threads)
    saved = GAIN * seconds
    estimate = f"about {duration(saved)} of {duration(seconds)}, and compiling takes up to {duration(SECONDS)}"
    if saved > SECONDS:
        return Compiling(True, f"it saves {estimate}")
    return Compiling(False, f"it would save {estimate}")


def _obstacle(config: PretrainConfig, shape: Shape, runtime: Runtime, *, cuda: bool) -> str:
    """Why auto compiles nothing however long a training is; empty if it may."""
    chosen = runtime.pretrain
    compiler = os.environ.get("CXX", "g++")
    obstacles = {
        "auto is for CPUs": cuda,
        "auto is for the engine ddp, or deepspeed with zero_stage 0": chosen.engine == "fsdp" or chosen.zero_stage > 0,
        "auto is for whole models in each process": any(getattr(chosen, name) > 1 for name in PARALLEL),
        "trainings of any length share their branches": chosen.branches,
        "auto is for dense models that our decoder computes": not isinstance(shape, ModelShape) or bool(shape.experts),
        "auto is for trainings of all weights": not config.trains_all,
        f"the C++ compiler {compiler} isn't on the PATH": shutil.which(compiler) is None,
    }
    return next((words for words, true in obstacles.items() if true), "")
